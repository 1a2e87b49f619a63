"""Encoded control requests equal those of the schema codec byte for byte, on random input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.control.encoders import (
    LiveLeader,
    StoppedPartition,
    head,
    leader_and_isr_body,
    leader_and_isr_suffix,
    pack_index,
    stop_replica_body,
    update_metadata_body,
    update_metadata_suffix,
    update_metadata_tail,
)
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.messages import decode_request, encode_request, request_class

int32 = st.integers(-(2**31), 2**31 - 1)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
names = st.text("abcö.-_", min_size=1, max_size=200)
states: st.SearchStrategy[LeaderAndIsr] = st.builds(LeaderAndIsr, int32, int32, ids, int32)
assignments: st.SearchStrategy[Assignment] = st.builds(Assignment, ids, ids, ids)
epochs = st.tuples(int32, int32, st.integers(-1, 2**63 - 1))


def topics_of(partition: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, list[Any]]]:
    return st.dictionaries(names, st.lists(partition, max_size=4), max_size=4)


def as_entries(topics: dict[str, list[Any]], suffix: Any) -> list[tuple[bytes, int, bytes]]:
    return [
        (name.encode(), len(entries), b"".join(pack_index(entry[0]) + suffix(entry) for entry in entries))
        for name, entries in topics.items()
    ]


@pytest.mark.parametrize("version", [2, 3, 4])
@given(
    epochs=epochs,
    topics=topics_of(st.tuples(int32, states, int32, assignments, st.booleans())),
    leaders=st.lists(st.builds(LiveLeader, int32, names, int32), max_size=3),
)
def test_leader_and_isr(version: int, epochs: Any, topics: Any, leaders: list[LiveLeader]) -> None:
    entries = as_entries(topics, lambda e: leader_and_isr_suffix(version, e[1], e[2], e[3], e[4]))
    body = leader_and_isr_body(version, *epochs, entries, leaders)

    def state(entry: Any) -> Any:
        index, state, zk_version, assignment, is_new = entry
        return request_class(ApiKey.LEADER_AND_ISR).TopicState.PartitionState(
            partition_index=index,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            zk_version=zk_version,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding),
            removing_replicas=list(assignment.removing),
            is_new=is_new,
        )

    request = request_class(ApiKey.LEADER_AND_ISR)(
        controller_id=epochs[0],
        controller_epoch=epochs[1],
        broker_epoch=epochs[2],
        topic_states=[
            request_class(ApiKey.LEADER_AND_ISR).TopicState(
                topic_name=name, partition_states=[state(e) for e in entries]
            )
            for name, entries in topics.items()
        ],
        live_leaders=[
            request_class(ApiKey.LEADER_AND_ISR).LiveLeader(
                broker_id=leader.broker, host_name=leader.host, port=leader.port
            )
            for leader in leaders
        ],
    )
    assert encode_request(request, version) == body
    decoded = decode_request(ApiKey.LEADER_AND_ISR, version, body)
    assert [(t, s.partition_index) for t, s in iter_partition_states(decoded)] == [
        (name, entry[0]) for name, entries in topics.items() for entry in entries
    ]


endpoints: st.SearchStrategy[Endpoint] = st.builds(Endpoint, names, names, int32, st.sampled_from(SecurityProtocol))
brokers: st.SearchStrategy[Broker] = st.builds(
    Broker, int32, st.lists(endpoints, max_size=2).map(tuple), st.none() | names
)


@pytest.mark.parametrize("version", [5, 6])
@given(
    epochs=epochs,
    topics=topics_of(st.tuples(int32, states, int32, ids, ids)),
    live=st.lists(brokers, max_size=3),
)
def test_update_metadata(version: int, epochs: Any, topics: Any, live: list[Broker]) -> None:
    entries = as_entries(topics, lambda e: update_metadata_suffix(version, e[1], e[2], e[3], e[4]))
    body = update_metadata_body(version, *epochs, entries, live)
    assert body == head(*epochs) + update_metadata_tail(version, entries, live)

    def state(entry: Any) -> Any:
        index, state, zk_version, replicas, offline = entry
        return request_class(ApiKey.UPDATE_METADATA).TopicState.PartitionState(
            partition_index=index,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            zk_version=zk_version,
            replicas=list(replicas),
            offline_replicas=list(offline),
        )

    live_broker = request_class(ApiKey.UPDATE_METADATA).LiveBroker
    request = request_class(ApiKey.UPDATE_METADATA)(
        controller_id=epochs[0],
        controller_epoch=epochs[1],
        broker_epoch=epochs[2],
        topic_states=[
            request_class(ApiKey.UPDATE_METADATA).TopicState(
                topic_name=name, partition_states=[state(e) for e in entries]
            )
            for name, entries in topics.items()
        ],
        live_brokers=[
            live_broker(
                id=broker.id,
                endpoints=[
                    live_broker.LiveEndpoint(
                        port=e.port, host=e.host, listener=e.listener, security_protocol=int(e.security_protocol)
                    )
                    for e in broker.endpoints
                ],
                rack=broker.rack,
            )
            for broker in live
        ],
    )
    assert encode_request(request, version) == body


@pytest.mark.parametrize("version", [1, 2, 3])
@given(
    epochs=epochs,
    topics=topics_of(st.builds(StoppedPartition, int32, int32, st.booleans())),
    delete=st.booleans(),
)
def test_stop_replica(version: int, epochs: Any, topics: dict[str, list[StoppedPartition]], delete: bool) -> None:
    if version < 3:
        topics = {name: [p._replace(delete=delete) for p in entries] for name, entries in topics.items()}
    body = stop_replica_body(version, *epochs, [(name.encode(), entries) for name, entries in topics.items()])
    flags = {p.delete for entries in topics.values() for p in entries}
    fields: dict[str, Any] = {"controller_id": epochs[0], "controller_epoch": epochs[1], "broker_epoch": epochs[2]}
    if version < 3:
        fields["delete_partitions"] = True in flags
        fields["topics"] = [
            request_class(ApiKey.STOP_REPLICA).TopicPartitions(
                name=name, partition_indexes=[p.partition for p in entries]
            )
            for name, entries in topics.items()
        ]
    else:
        state = request_class(ApiKey.STOP_REPLICA).TopicState.PartitionState
        fields["topic_states"] = [
            request_class(ApiKey.STOP_REPLICA).TopicState(
                topic_name=name,
                partition_states=[
                    state(partition_index=p.partition, leader_epoch=p.leader_epoch, delete_partition=p.delete)
                    for p in entries
                ],
            )
            for name, entries in topics.items()
        ]
    assert encode_request(request_class(ApiKey.STOP_REPLICA)(**fields), version) == body
    decoded = decode_request(ApiKey.STOP_REPLICA, version, body)
    assert list(iter_stopped_replicas(decoded)) == [
        (TopicPartition(name, p.partition), p.leader_epoch if version >= 3 else -1, p.delete)
        for name, entries in topics.items()
        for p in entries
    ]


def test_two_flags_do_not_fit_one_old_request() -> None:
    mixed = [(b"t", [StoppedPartition(0, 1, True), StoppedPartition(1, 1, False)])]
    with pytest.raises(AssertionError):
        stop_replica_body(2, BrokerId(0), ControllerEpoch(1), BrokerEpoch(2), mixed)


def test_layout_by_hand() -> None:
    """Compared with bytes written out by hand, not with our own schemas."""
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(5), (BrokerId(1),), ControllerEpoch(9))
    suffix = leader_and_isr_suffix(4, state, 7, Assignment((BrokerId(1), BrokerId(2))), True)
    assert suffix == bytes.fromhex("00000009 00000001 00000005 02 00000001 00000007 03 00000001 00000002 01 01 01 00")
    body = leader_and_isr_body(
        4,
        BrokerId(3),
        ControllerEpoch(9),
        BrokerEpoch(77),
        [(b"t", 1, pack_index(0) + suffix)],
        [LiveLeader(BrokerId(1), "h", 9092)],
    )
    assert body == (
        bytes.fromhex("00000003 00000009 000000000000004d 02 02") + b"t" + b"\x02" + bytes(4) + suffix + b"\x00"
        b"\x02" + bytes.fromhex("00000001 02") + b"h" + bytes.fromhex("00002384 00 00")
    )
