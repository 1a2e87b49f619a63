"""Every codec on malformed content: it returns a value or raises ZNodeError, and nothing else.

Any other exception would end a controller, and then its successor on the same znode.
"""

from __future__ import annotations

import json
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any

import pytest

from klamm.model.errors import ZNodeError
from klamm.zookeeper import znodes
from klamm.zookeeper.znodes import (
    acl,
    acl_change,
    broker_id,
    cluster_id,
    config,
    config_change,
    consumer_offset,
    controller,
    controller_epoch,
    controller_move,
    delegation_token,
    document,
    feature,
    isr_change,
    log_dir_event,
    partition_state,
    preferred_replica_election,
    producer_id_block,
    quarantine,
    reassign_partitions,
    topic,
)

SANE: list[tuple[str, Any, bytes]] = [
    (
        "/brokers/ids/1",
        broker_id,
        b'{"listener_security_protocol_map":{"A":"PLAINTEXT","B":"SSL"},"endpoints":["A://h:1","B://[::1]:2"],"rack":"r",'
        b'"jmx_port":-1,"port":1,"host":"h","version":5,"timestamp":"1","features":{}}',
    ),
    ("/brokers/ids/1", broker_id, b'{"version":1,"host":"h","port":1,"jmx_port":-1,"timestamp":"1"}'),
    (
        "/brokers/topics/t",
        topic,
        b'{"partitions":{"0":[1,2],"1":[2]},"topic_id":"x","adding_replicas":{"0":[2]},"removing_replicas":{"0":[1]},'
        b'"version":3}',
    ),
    (
        "/brokers/topics/t/partitions/0/state",
        partition_state,
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,3,2],"leader_recovery_state":1}',
    ),
    ("/controller", controller, b'{"version":2,"brokerid":3,"timestamp":"1","kraftControllerEpoch":-1}'),
    ("/controller_epoch", controller_epoch, b"12"),
    ("/consumers/g/offsets/t/0", consumer_offset, b"42"),
    ("/config/extension/controller_move", controller_move, b'{"version":1,"broker":1}'),
    ("/cluster/id", cluster_id, b'{"version":"1","id":"CrYB-5f7Q_6sQWz3Kop07A"}'),
    ("/config/topics/t", config, b'{"version":1,"config":{"retention.ms":"1"}}'),
    ("/config/changes/config_change_0", config_change, b'{"version":2,"entity_path":"topics/t"}'),
    ("/config/changes/config_change_0", config_change, b'{"version":1,"entity_type":"topics","entity_name":"t"}'),
    (
        "/admin/reassign_partitions",
        reassign_partitions,
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1]}]}',
    ),
    (
        "/admin/preferred_replica_election",
        preferred_replica_election,
        b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
    ),
    ("/isr_change_notification/isr_change_0", isr_change, b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'),
    ("/log_dir_event_notification/log_dir_event_0", log_dir_event, b'{"version":1,"broker":1,"event":1}'),
    ("/latest_producer_id_block", producer_id_block, b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'),
    (
        "/kafka-acl/Topic/t",
        acl,
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}',
    ),
    ("/kafka-acl-changes/acl_changes_0", acl_change, b"TOPIC:t"),
    (
        "/kafka-acl-extended-changes/acl_changes_0",
        acl_change,
        b'{"version":1,"resourceType":"TOPIC","name":"x","patternType":"PREFIXED"}',
    ),
    (
        "/delegation_token/tokens/t",
        delegation_token,
        b'{"issueTimestamp":1,"renewers":["User%3Ar"],"tokenRequester":"User%3Ao","tokenId":"t","owner":"User%3Ao",'
        b'"expiryTimestamp":2,"maxTimestamp":3,"version":3}',
    ),
    (
        "/config/extension/quarantine/x",
        quarantine,
        b'{"version":1,"path":"/brokers/topics/t","mzxid":8589934592,"reason":"r","broker":1,"time_ms":1794772480820}',
    ),
    ("/feature", feature, b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'),
]
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**30,
    1.5,
    "",
    "x",
    "-",
    "\u0661",
    "9" * 5000,
    "\ud83d\ude00",
    [],
    [None],
    [[1]],
    {},
    {"": 1},
    {"x": []},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with each of its keys or indexes."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [(value, key), *places(inner)]
    return found


def decode(codec: Any, path: str, data: bytes | None) -> None:
    try:
        codec.decode(path, data)
    except ZNodeError as error:
        assert path in str(error)


@pytest.mark.parametrize(("path", "codec", "data"), SANE, ids=[f"{path}-{n}" for n, (path, _, _) in enumerate(SANE)])
class TestNothingButZNodeError:
    def test_sane(self, path: str, codec: Any, data: bytes) -> None:
        codec.decode(path, data)

    def test_each_value_replaced_or_missing(self, path: str, codec: Any, data: bytes) -> None:
        if not data.startswith(b"{"):
            return
        for number in range(len(places(json.loads(data)))):
            for junk in [*JUNK, "missing"]:
                document = json.loads(data)
                container, key = places(document)[number]
                if junk == "missing":
                    del container[key]
                else:
                    container[key] = junk
                decode(codec, path, json.dumps(document).encode())
                decode(codec, path, json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass"))

    def test_each_key_replaced(self, path: str, codec: Any, data: bytes) -> None:
        for key in ("", "-1", "x", "\u0661", "9" * 5000, "1.0"):
            for inner in ("partitions", "adding_replicas", "removing_replicas", "config", "features"):
                if data.startswith(b"{") and isinstance(json.loads(data).get(inner), dict):
                    document = json.loads(data)
                    document[inner][key] = next(iter(document[inner].values()), [])
                    decode(codec, path, json.dumps(document).encode())

    def test_bytes_cut_and_changed(self, path: str, codec: Any, data: bytes) -> None:
        random = Random(1)
        for length in range(len(data)):
            decode(codec, path, data[:length])
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(random.randint(1, 4)):
                changed[random.randrange(len(changed))] = random.randrange(256)
            decode(codec, path, bytes(changed))
        for junk in (
            None,
            b"",
            b"\x00",
            b"null",
            b"[]",
            b"{}",
            b"0",
            b'""',
            b"9" * 5000,
            b"[" * 2000,
            b"\xff\xfe",
            b"-1",
        ):
            decode(codec, path, junk)


def codecs() -> list[Any]:
    modules = [import_module(f"{znodes.__name__}.{found.name}") for found in iter_modules(znodes.__path__)]
    return [module for module in modules if hasattr(module, "decode")]


def test_every_codec_is_here() -> None:
    assert {codec.__name__ for codec in codecs()} == {codec.__name__ for _, codec, _ in SANE}


@pytest.mark.parametrize("unexpected", [KeyError("k"), TypeError("t"), ValueError("v"), AttributeError("a")])
def test_an_exception_that_no_codec_expects(unexpected: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> Any:
        raise unexpected

    partition_state.clear_caches()
    for name in ("parse", "natural"):
        monkeypatch.setattr(document, name, explode)
    for path, codec, data in SANE:
        if codec is acl_change and not data.startswith(b"{"):
            continue  # plain text: it calls neither of the two functions
        with pytest.raises(ZNodeError, match=f"{path}.*{type(unexpected).__name__}"):
            codec.decode(path, data)


def test_the_announcement_of_a_token() -> None:
    path = "/delegation_token/token_changes/token_change_0"
    assert delegation_token.decode_change(path, b"t") == "t"
    for junk in (None, b"", b"\xff"):
        with pytest.raises(ZNodeError, match=path):
            delegation_token.decode_change(path, junk)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63])
def test_what_no_request_could_carry_is_no_number(number: int) -> None:
    state = b'{"controller_epoch":1,"leader":%d,"version":1,"leader_epoch":0,"isr":[1]}' % number
    sane = state.replace(b'"leader":%d' % number, b'"leader":1')
    for codec, path, data in (
        (partition_state, "/brokers/topics/t/partitions/0/state", state),
        (partition_state, "/brokers/topics/t/partitions/0/state", sane.replace(b"[1]", b"[%d]" % number)),
        (controller, "/controller", b'{"version":1,"brokerid":%d}' % number),
        (controller_epoch, "/controller_epoch", b"%d" % number),
        (log_dir_event, "/log_dir_event_notification/log_dir_event_0", b'{"version":1,"broker":%d}' % number),
    ):
        with pytest.raises(ZNodeError):
            codec.decode(path, data)


@pytest.mark.parametrize("port", ["", "x", "\u00b2", "\u0661", "9" * 5000, "1.0", "--1"])
def test_ports_of_endpoints(port: str) -> None:
    document = {"version": 2, "jmx_port": -1, "endpoints": [f"PLAINTEXT://h:{port}"]}
    with pytest.raises(ZNodeError, match="NAME://host:port"):
        broker_id.decode("/brokers/ids/1", json.dumps(document).encode())
