"""The sliced decoders return the same as the schema codec, and refuse every torn request."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.handlers.slices import in_slices
from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.control import PartitionMetadata, PartitionOrder
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.wire.control import encoders
from klamm.wire.control.decoders import decode_leader_and_isr, decode_update_metadata
from klamm.wire.control.encoders import LiveLeader, TopicEntries
from klamm.wire.errors import ProtocolError
from klamm.wire.slices import finish

BROKERS = [
    Broker(BrokerId(1), (Endpoint("INTERNAL", "a", 1), Endpoint("CLIENT", "::1", 2, SecurityProtocol.SSL)), "r1"),
    Broker(BrokerId(2), (Endpoint("INTERNAL", "b", 3),)),
]


def ids(*values: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(value) for value in values)


STATES = [
    LeaderAndIsr(BrokerId(1), LeaderEpoch(4), ids(1, 2), ControllerEpoch(9)),
    LeaderAndIsr(BrokerId(-1), LeaderEpoch(0), (), ControllerEpoch(8)),
    LeaderAndIsr(BrokerId(5), LeaderEpoch(2), ids(*range(200)), ControllerEpoch(9)),
]
MOVING = Assignment(ids(1, 2, 3), ids(3), ids(1))


def update_metadata(version: int) -> bytes:
    topics: list[TopicEntries] = []
    for name in (b"orders", "größe".encode()):
        entries = b"".join(
            encoders.pack_index(i) + encoders.update_metadata_suffix(version, s, 7, ids(1, 2), ids(2))
            for i, s in enumerate(STATES)
        )
        topics.append((name, len(STATES), entries))
    return encoders.update_metadata_body(version, BrokerId(3), ControllerEpoch(9), BrokerEpoch(77), topics, BROKERS)


def leader_and_isr(version: int) -> bytes:
    entries = b"".join(
        encoders.pack_index(i) + encoders.leader_and_isr_suffix(version, s, 7, MOVING, i == 1)
        for i, s in enumerate(STATES)
    )
    return encoders.leader_and_isr_body(
        version,
        BrokerId(3),
        ControllerEpoch(9),
        BrokerEpoch(77),
        [(b"orders", len(STATES), entries)],
        [LiveLeader(BrokerId(1), "a", 1)],
    )


@pytest.mark.parametrize("version", [5, 6])
def test_update_metadata(version: int) -> None:
    decoded = finish(decode_update_metadata(version, memoryview(update_metadata(version))))
    assert decoded.sender == (3, 9, 77)
    assert decoded.brokers == BROKERS
    expected = [
        (i, PartitionMetadata(s.leader, s.leader_epoch, s.isr, ids(1, 2), ids(2))) for i, s in enumerate(STATES)
    ]
    assert decoded.topics == [("orders", expected), ("größe", expected)]


@pytest.mark.parametrize("version", [3, 4])
def test_leader_and_isr(version: int) -> None:
    decoded = finish(decode_leader_and_isr(version, memoryview(leader_and_isr(version))))
    assert decoded.sender == (3, 9, 77)
    assert decoded.partitions == [
        PartitionOrder(TopicPartition("orders", i), s, 7, MOVING, i == 1) for i, s in enumerate(STATES)
    ]


def test_torn_anywhere() -> None:
    whole = update_metadata(6)
    for size in range(len(whole) - 1):  # the last byte is the request's own tag section, which is not read
        with pytest.raises(ProtocolError):
            finish(decode_update_metadata(6, memoryview(whole[:size])))
    whole = leader_and_isr(4)
    live_leaders = len(whole) - 13  # not checked to the end, because receivers use their metadata cache
    for size in range(live_leaders):
        with pytest.raises(ProtocolError):
            finish(decode_leader_and_isr(4, memoryview(whole[:size])))


async def test_equal_states_are_one_value_and_others_get_their_turn() -> None:
    suffix = encoders.update_metadata_suffix(6, STATES[0], 7, ids(1, 2), ())
    entries = b"".join(encoders.pack_index(i) + suffix for i in range(2_000))
    topics: list[TopicEntries] = [(b"t%d" % i, 2_000, entries) for i in range(10)]
    body = encoders.update_metadata_body(6, BrokerId(3), ControllerEpoch(9), BrokerEpoch(7), topics, [])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    decoded = await in_slices(decode_update_metadata(6, memoryview(body)))
    counting.cancel()
    assert turns >= 3
    assert len({id(state) for _, partitions in decoded.topics for _, state in partitions}) == 1
