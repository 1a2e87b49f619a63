"""Messages by their tables: every API survives a round trip in every version; torn or lying bytes are refused."""

from __future__ import annotations

import random
import struct
import time

import pytest

from klamm.testing.random_messages import random_message
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from klamm.wire.varint import uvarint

EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_round_trip(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(3):
        request = random_message(request_class(key), version, rng)
        body = encode_request(request, version)
        assert decode_request(key, version, body) == request
        assert encode_request(decode_request(key, version, body), version) == body
        response = random_message(response_class(key), version, rng)
        body = encode_response(response, version)
        assert decode_response(key, version, body) == response
        assert encode_response(decode_response(key, version, body), version) == body


@pytest.mark.parametrize("key", APIS)
def test_the_tables_have_every_version_that_the_apis_have(key: ApiKey) -> None:
    api = APIS[key]
    for cls in (request_class(key), response_class(key)):
        assert cls.schema.versions.first == api.min_version == 0
        assert cls.schema.versions.last >= api.max_version
        assert cls.schema.flexible_from == api.flexible_from


def test_a_field_that_is_not_given_has_its_default() -> None:
    cls = response_class(ApiKey.METADATA)
    topic = cls.MetadataResponseTopic(name="t")
    assert (topic.error_code, topic.partitions, topic.authorized_operations) == (0, [], -(2**31))
    assert topic.partitions is not cls.MetadataResponseTopic().partitions
    decoded = decode_response(ApiKey.METADATA, 0, encode_response(cls(topics=[topic], controller_id=7), 0))
    assert (decoded.controller_id, decoded.cluster_id, decoded.topics[0].is_internal) == (-1, None, False)
    with pytest.raises(AttributeError, match="no field replicas"):
        _ = topic.replicas
    with pytest.raises(TypeError):
        cls.MetadataResponseTopic(replicas=[])


def test_a_value_that_does_not_fit_is_refused_with_the_name_of_the_message() -> None:
    cls = response_class(ApiKey.HEARTBEAT)
    with pytest.raises(struct.error) as raised:
        encode_response(cls(error_code=40_000), 0)
    assert raised.value.__notes__ == ["in HeartbeatResponse version 0"]


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_every_truncation_is_refused(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    body = encode_request(random_message(request_class(key), version, rng), version)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, body[:cut])
    decode_request(key, version, body + b"surplus bytes are ignored")


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_mutations_are_decoded_or_refused(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(40):
        body = bytearray(encode_request(random_message(request_class(key), version, rng), version))
        for _ in range(rng.randrange(1, 4)):
            if body:
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            decode_request(key, version, body)
        except ProtocolError:
            pass


def test_lies_are_refused() -> None:
    lies = {
        "a string cut at the end": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 10) + b"abc"),
        "a negative count": (ApiKey.METADATA, 1, struct.pack(">i", -2)),
        "a null topic name": (ApiKey.METADATA, 1, struct.pack(">ih", 1, -1)),
        "null topics where they may not be": (ApiKey.METADATA, 0, struct.pack(">i", -1)),
        "a count that the frame cannot hold": (ApiKey.METADATA, 1, struct.pack(">i", 2**31 - 1)),
        "an endless varint": (ApiKey.METADATA, 9, b"\xff" * 1000),
        "a huge compact count": (ApiKey.METADATA, 9, b"\xff\xff\xff\xff\x0f"),
        "many tags": (ApiKey.LIST_GROUPS, 3, b"\xff\x01" + b"\x00\x00" * 300),
        "falling tags": (ApiKey.LIST_GROUPS, 3, b"\x02\x09\x00\x08\x00"),
        "a null element": (ApiKey.DESCRIBE_CONFIGS, 0, struct.pack(">ibhcih", 1, 2, 1, b"t", 1, -1)),
        "no UTF-8": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 1) + b"\xff"),
    }
    for name, (key, version, body) in lies.items():
        with pytest.raises(ProtocolError):
            decode_request(key, version, body)
            pytest.fail(name)


def test_tags_that_nobody_knows_are_skipped_in_one_pass() -> None:
    count = 100_000
    topic = b"\x02a\x01\x00\x00"  # a compact string and one empty unknown tag
    body = uvarint(count + 1) + topic * count + bytes(4)
    began = time.process_time()
    assert len(decode_request(ApiKey.METADATA, 9, body).topics) == count
    assert time.process_time() - began < 2


def test_a_known_tag_is_read_and_fills_its_bytes() -> None:
    cls = response_class(ApiKey.API_VERSIONS)
    feature = cls.SupportedFeatureKey(name="f", min_version=1, max_version=3)
    body = encode_response(cls(supported_features=[feature], zk_migration_ready=True), 3)
    decoded = decode_response(ApiKey.API_VERSIONS, 3, body)
    assert (decoded.supported_features, decoded.zk_migration_ready) == ([feature], True)
    assert body.endswith(b"\x02\x00\x08\x02\x02f\x00\x01\x00\x03\x00\x03\x01\x01")
    for size in (0, 7, 9):
        with pytest.raises(ProtocolError):
            decode_response(ApiKey.API_VERSIONS, 3, body.replace(b"\x02\x00\x08", bytes([2, 0, size])))


@pytest.mark.parametrize(("key", "version"), [(99, 0), (-1, 0), (ApiKey.METADATA, 10), (ApiKey.METADATA, -1)])
def test_unknown_api_or_version(key: int, version: int) -> None:
    with pytest.raises(ProtocolError):
        decode_request(key, version, b"")


def test_header_versions() -> None:
    assert APIS[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(0) == 0
    assert APIS[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(1) == 1
    assert APIS[ApiKey.METADATA].request_header_version(9) == 2
    assert APIS[ApiKey.METADATA].response_header_version(9) == 1
    assert APIS[ApiKey.API_VERSIONS].request_header_version(3) == 2
    assert APIS[ApiKey.API_VERSIONS].response_header_version(3) == 0
