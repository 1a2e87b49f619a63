"""Our schemas and encoders against bytes that Apache Kafka's own library (3.9.1) wrote.

`control_messages_by_kafka.txt` has one message per line: class, version, and body in hex, for every version that klamm
serves. All requests are about the same partition, so that the encoders can be compared too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.model.brokers import Broker, Endpoint
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import APIS, CONTROL_APIS
from klamm.wire.control.encoders import (
    LiveLeader,
    StoppedPartition,
    leader_and_isr_body,
    leader_and_isr_suffix,
    pack_index,
    stop_replica_body,
    update_metadata_body,
    update_metadata_suffix,
)
from klamm.wire.control.schema_requests import iter_partition_states
from klamm.wire.messages import decode_request, decode_response, encode_request, encode_response

LINES = [line.split() for line in Path(__file__).with_name("control_messages_by_kafka.txt").read_text().splitlines()]
BY_KAFKA = {(name, int(version)): bytes.fromhex(body) for name, version, body in LINES}
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
STATE = LeaderAndIsr(ONE, LeaderEpoch(5), (ONE, TWO), ControllerEpoch(8))
SENDER = (THREE, ControllerEpoch(9), BrokerEpoch(77))


def test_every_version_is_there() -> None:
    assert set(BY_KAFKA) == {
        (APIS[key].name + kind, version)
        for key in CONTROL_APIS
        for kind in ("Request", "Response")
        for version in range(APIS[key].max_version + 1)
    }


@pytest.mark.parametrize("key", sorted(CONTROL_APIS))
def test_schemas(key: int) -> None:
    api = APIS[key]
    for version in range(api.max_version + 1):
        body = BY_KAFKA[api.name + "Request", version]
        assert encode_request(decode_request(key, version, body), version) == body
        body = BY_KAFKA[api.name + "Response", version]
        assert encode_response(decode_response(key, version, body), version) == body


@pytest.mark.parametrize("key", [4, 6])
def test_fields_are_where_we_read_them(key: int) -> None:
    for version in range(APIS[key].max_version + 1):
        request = decode_request(key, version, BY_KAFKA[APIS[key].name + "Request", version])
        ((topic, state),) = iter_partition_states(request)
        assert (request.controller_id, request.controller_epoch, topic) == (3, 9, "topic")
        assert (state.partition_index, state.controller_epoch, state.leader, state.leader_epoch) == (4, 8, 1, 5)
        assert (state.isr, state.zk_version, state.replicas) == ([1, 2], 7, [1, 2, 3])


@pytest.mark.parametrize("version", [2, 3, 4])
def test_leader_and_isr(version: int) -> None:
    suffix = leader_and_isr_suffix(version, STATE, 7, Assignment((ONE, TWO, THREE), (THREE,), (TWO,)), True)
    topics = [(b"topic", 1, pack_index(4) + suffix)]
    body = leader_and_isr_body(version, *SENDER, topics, [LiveLeader(ONE, "host", 9092)])
    assert body == BY_KAFKA["LeaderAndIsrRequest", version]


@pytest.mark.parametrize(("version", "rack"), [(5, "rack"), (6, None)])
def test_update_metadata(version: int, rack: str | None) -> None:
    suffix = update_metadata_suffix(version, STATE, 7, (ONE, TWO, THREE), (THREE,))
    broker = Broker(ONE, (Endpoint("PLAINTEXT", "host", 9092),), rack)
    body = update_metadata_body(version, *SENDER, [(b"topic", 1, pack_index(4) + suffix)], [broker])
    assert body == BY_KAFKA["UpdateMetadataRequest", version]


@pytest.mark.parametrize(("version", "partitions"), [(1, (4, 5)), (2, (4, 5)), (3, (4,))])
def test_stop_replica(version: int, partitions: tuple[int, ...]) -> None:
    stopped = [StoppedPartition(partition, 6, True) for partition in partitions]
    assert stop_replica_body(version, *SENDER, [(b"topic", stopped)]) == BY_KAFKA["StopReplicaRequest", version]
