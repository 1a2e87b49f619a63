"""Which requests a batch sends to which broker, decoded from the bytes by the schema codec."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.events import LeaderAndIsrResponse, StopReplicaResponse, UpdateMetadataResponse
from klamm.controller.execution.request_batch import RequestBatch
from klamm.controller.execution.request_encoder import RequestEncoder, versions_of
from klamm.model.brokers import Broker, Endpoint, LiveBroker
from klamm.model.config import read_broker_config
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.apis import ApiKey
from klamm.wire.control.responses import error_code, refused, succeeded
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request, encode_response, response_class

EPOCH = ControllerEpoch(456)


def context_of(*brokers: int, shutting_down: tuple[int, ...] = ()) -> ControllerContext:
    context = ControllerContext(EPOCH)
    for broker in brokers:
        endpoint = Endpoint("PLAINTEXT", f"host{broker}", 9092)
        live = LiveBroker(Broker(BrokerId(broker), (endpoint,), rack="r"), BrokerEpoch(100 + broker))
        context.brokers[BrokerId(broker)] = live
    context.shutting_down.update(map(BrokerId, shutting_down))
    return context


def add(context: ControllerContext, topic: str, leaders: dict[int, int], *, known: bool = True) -> list[int]:
    assignment = Assignment(tuple(map(BrokerId, (1, 2, 3))))
    partitions = context.add_partitions(topic, dict.fromkeys(leaders, assignment))
    for partition, leader in zip(partitions, leaders.values(), strict=True):
        if known:
            isr = tuple(map(BrokerId, (1, 2)))
            context.put_state(partition, LeaderAndIsr(BrokerId(leader), LeaderEpoch(7), isr, ControllerEpoch(3)), 11)
    return partitions


async def encoded(
    context: ControllerContext, batch: RequestBatch, protocol: str = "2.5"
) -> list[tuple[int, ApiKey, Any, Any]]:
    values = {"broker.id": "0", "zookeeper.connect": "x:1", "inter.broker.protocol.version": protocol}
    encoder = RequestEncoder(read_broker_config(values)[0], context)
    return [
        (broker, r.api_key, decode_request(r.api_key, r.version, b"".join(map(bytes, r.chunks))), r)
        async for broker, r in encoder.encode(batch)
    ]


@pytest.mark.case("CCM-01")
@pytest.mark.case("CCM-02")
@pytest.mark.case("CCM-03")
async def test_one_leader_and_isr_and_one_metadata_with_all_partitions() -> None:
    context = context_of(1, 2, 3)
    partitions = [*add(context, "foo", {0: 1, 1: 2}), *add(context, "bar", {1: 3})]
    batch = RequestBatch()
    for partition in partitions:
        batch.add_leader_and_isr(context, partition, [BrokerId(2)], is_new=False)
    batch.add_stop_replica(context, BrokerId(2), partitions[:1], delete=False)
    told = await encoded(context, batch)
    assert [key for broker, key, *_ in told if broker == 2] == [
        ApiKey.LEADER_AND_ISR,
        ApiKey.UPDATE_METADATA,
        ApiKey.STOP_REPLICA,
    ]
    assert {broker for broker, key, *_ in told if key is ApiKey.UPDATE_METADATA} == {1, 2, 3}
    (request,) = [body for _, key, body, _ in told if key is ApiKey.LEADER_AND_ISR]
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (0, EPOCH, 102)
    states = {
        (topic, s.partition_index): (s.leader, s.leader_epoch, list(s.isr), s.zk_version, list(s.replicas), s.is_new)
        for topic, s in iter_partition_states(request)
    }
    assert states == {
        ("foo", 0): (1, 7, [1, 2], 11, [1, 2, 3], False),
        ("foo", 1): (2, 7, [1, 2], 11, [1, 2, 3], False),
        ("bar", 1): (3, 7, [1, 2], 11, [1, 2, 3], False),
    }
    assert [(leader.broker_id, leader.host_name, leader.port) for leader in request.live_leaders] == [
        (1, "host1", 9092),
        (2, "host2", 9092),
        (3, "host3", 9092),
    ]


@pytest.mark.case("CCM-04")
@pytest.mark.case("CCM-05")
@pytest.mark.case("CCM-06")
async def test_the_dead_hear_nothing_the_leaving_hear_all() -> None:
    context = context_of(1, 2, shutting_down=(2,))
    (partition,) = add(context, "foo", {0: 1})
    everyone = [BrokerId(b) for b in (1, 2, 3)]
    batch = RequestBatch()
    batch.add_leader_and_isr(context, partition, everyone, is_new=False)
    batch.add_stop_replica(context, BrokerId(2), [partition], delete=False)
    batch.add_stop_replica(context, BrokerId(3), [partition], delete=False)
    told = await encoded(context, batch)
    assert [b for b, key, *_ in told if key is ApiKey.LEADER_AND_ISR] == [1, 2]
    assert [b for b, key, *_ in told if key is ApiKey.STOP_REPLICA] == [2]
    empty = RequestBatch()
    empty.add_metadata(context, everyone, ())
    told = await encoded(context, empty)
    assert [b for b, *_ in told] == [1, 2]
    assert [[b.id for b in body.live_brokers] for _, _, body, _ in told] == [[1, 2], [1, 2]]


@pytest.mark.case("CCM-07")
@pytest.mark.case("CCM-10")
async def test_metadata_says_leader_minus_2_for_topics_being_deleted() -> None:
    context = context_of(1, 2)
    partitions = [*add(context, "foo", {0: 1, 1: 2}), *add(context, "bar", {1: 1})]
    context.start_deleting("foo")
    batch = RequestBatch()
    batch.add_metadata(context, None, partitions)
    told = await encoded(context, batch)
    assert [body.broker_epoch for _, _, body, _ in told] == [101, 102]
    states = {
        (topic, s.partition_index): (s.leader, s.leader_epoch, s.zk_version, list(s.isr), list(s.offline_replicas))
        for topic, s in iter_partition_states(told[0][2])
    }
    assert states == {
        ("foo", 0): (-2, 0, 0, [1, 2], [3]),
        ("foo", 1): (-2, 0, 0, [1, 2], [3]),
        ("bar", 1): (1, 7, 11, [1, 2], [3]),
    }


@pytest.mark.case("CCM-09")
async def test_metadata_without_leadership_info_still_names_the_brokers() -> None:
    context = context_of(1, 2)
    batch = RequestBatch()
    batch.add_metadata(context, None, add(context, "foo", {0: 1}, known=False))
    told = await encoded(context, batch)
    assert [list(iter_partition_states(body)) for _, _, body, _ in told] == [[], []]
    assert [b.id for b in told[0][2].live_brokers] == [1, 2]


@pytest.mark.case("CCM-11")
@pytest.mark.case("CCM-12")
@pytest.mark.case("CCM-13")
async def test_stop_replica_by_version() -> None:
    context = context_of(2, 3)
    foo, bar = add(context, "foo", {0: 1, 1: 1}), add(context, "bar", {1: 1})
    batch = RequestBatch()
    for broker in (BrokerId(2), BrokerId(3)):
        batch.add_stop_replica(context, broker, bar, delete=False)
    batch.add_stop_replica(context, BrokerId(2), foo, delete=True)
    old = await encoded(context, batch)
    assert [(b, body.delete_partitions) for b, _, body, _ in old] == [(2, True), (2, False), (3, False)]
    deleting, keeping, _ = (request for *_, request in old)
    assert keeping.decode_response(memoryview(b"\0\0\1\0")) is None
    assert isinstance(deleting.decode_response(memoryview(b"\0\0\1\0")), StopReplicaResponse)
    new = await encoded(context, batch, "2.6")
    stopped = {b: sorted(iter_stopped_replicas(body)) for b, _, body, _ in new}
    assert stopped == {
        2: [
            (TopicPartition("bar", 1), 7, False),
            (TopicPartition("foo", 0), 7, True),
            (TopicPartition("foo", 1), 7, True),
        ],
        3: [(TopicPartition("bar", 1), 7, False)],
    }


async def test_a_topic_whose_ids_are_no_neighbours_is_one_topic() -> None:
    context = context_of(1)
    told = [*add(context, "foo", {0: 1, 1: 1}), *add(context, "bar", {0: 1}), *add(context, "foo", {2: 1})]
    batch = RequestBatch()
    batch.add_leader_and_isr_on(context, BrokerId(1), told)
    for _, _, body, _ in await encoded(context, batch):
        numbers = {t.topic_name: [state.partition_index for state in t.partition_states] for t in body.topic_states}
        assert numbers == {"foo": [0, 1, 2], "bar": [0]} and len(body.topic_states) == 2


async def test_new_and_delete_stick() -> None:
    context = context_of(1)
    (partition,) = add(context, "foo", {0: 1})
    batch = RequestBatch()
    batch.add_leader_and_isr(context, partition, [BrokerId(1)], is_new=True)
    batch.add_leader_and_isr(context, partition, [BrokerId(1), BrokerId(-1)], is_new=False)
    batch.add_stop_replica(context, BrokerId(1), [partition], delete=True)
    batch.add_stop_replica(context, BrokerId(1), [partition], delete=False)
    assert batch.leader_and_isr == batch.new == {1: {partition}}
    assert batch.stop_replica[BrokerId(1)][partition].delete


@pytest.mark.case("CCM-14")
@pytest.mark.case("CCM-15")
@pytest.mark.case("CCM-16")
@pytest.mark.parametrize(("protocol", "expected"), [("2.4", (4, 2, 6)), ("2.5-IV0", (4, 2, 6)), ("2.6", (4, 3, 6))])
def test_versions_follow_the_inter_broker_protocol(protocol: str, expected: tuple[int, int, int]) -> None:
    assert versions_of(protocol) == expected


def leader_and_isr_answer(*errors: tuple[str, int, int]) -> bytes:
    cls = response_class(ApiKey.LEADER_AND_ISR)
    entries = [cls.PartitionError(topic_name=t, partition_index=p, error_code=code) for t, p, code in errors]
    return encode_response(cls(partition_errors=entries), 4)


@pytest.mark.case("CCM-08")
async def test_answers_become_events() -> None:
    context = context_of(1)
    batch = RequestBatch()
    batch.add_leader_and_isr(context, *add(context, "foo", {0: 1}), [BrokerId(1)], is_new=False)
    (_, _, _, leader_and_isr), (_, _, _, metadata) = await encoded(context, batch)
    stale = metadata.decode_response(memoryview((77).to_bytes(2, "big") + b"\0"))
    assert isinstance(stale, UpdateMetadataResponse)
    assert (stale.broker, stale.error) == (1, 77)
    body = leader_and_isr_answer(("foo", 0, 0), ("foo", 1, 56), ("a" * 200, 2, 11))
    event = leader_and_isr.decode_response(memoryview(body))
    assert isinstance(event, LeaderAndIsrResponse)
    assert (event.broker, event.broker_epoch, event.error) == (1, 101, 0)
    assert event.errors == ((TopicPartition("foo", 1), 56), (TopicPartition("a" * 200, 2), 11))
    assert event.succeeded() == {TopicPartition("foo", 0)}


def test_nonsense_is_a_protocol_error() -> None:
    body = leader_and_isr_answer(("topic", 3, 56))
    assert refused(memoryview(body)) == ((TopicPartition("topic", 3), 56),)
    for end in range(2, len(body) - 1):
        with pytest.raises(ProtocolError):
            refused(memoryview(body[:end]))
    with pytest.raises(ProtocolError):
        error_code(memoryview(b"\0"))
    assert succeeded(memoryview(body)) == frozenset()
