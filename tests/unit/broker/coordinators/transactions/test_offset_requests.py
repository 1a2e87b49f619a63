"""ListOffsets and OffsetForLeaderEpoch on real logs: each situation that a client can meet."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

from .whole_broker import TIME, WholeBroker, broker

__all__ = ["broker"]

TP = TopicPartition("times", 0)


async def ask_offsets(broker: WholeBroker, *asked: tuple[int, int], version: int = 5, **fields: Any) -> list[Any]:
    """(partition, timestamp) of the topic."""
    cls = request_class(ApiKey.LIST_OFFSETS)
    entries = [
        cls.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=-1, max_num_offsets=1
        )
        for partition, timestamp in asked
    ]
    topic = cls.ListOffsetsTopic(name=TP.topic, partitions=entries)
    settings = {"replica_id": -1, "isolation_level": 0} | fields
    answer = await broker.ask(ApiKey.LIST_OFFSETS, version, topics=[topic], **settings)
    return list(answer.topics[0].partitions)


async def at(broker: WholeBroker, timestamp: int, **fields: Any) -> tuple[int, int, int, int]:
    (found,) = await ask_offsets(broker, (0, timestamp), **fields)
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


async def plain(broker: WholeBroker, *values: bytes, time: int) -> None:
    assert await broker.produce(TP, *values, transactional_id=None, transactional=False, time=time) == 0


async def test_the_first_record_at_or_after_a_time(broker: WholeBroker) -> None:
    """Inside a batch too; and times need not rise, so an older record may come later."""
    await broker.lead(TP.topic)
    await plain(broker, b"0", b"1", b"2", time=TIME)
    await plain(broker, b"3", time=TIME - 100)
    await plain(broker, b"4", time=TIME + 50)
    assert await at(broker, TIME - 200) == (0, 0, TIME, 0)
    assert await at(broker, TIME + 1) == (0, 1, TIME + 1, 0)
    assert await at(broker, TIME + 2) == (0, 2, TIME + 2, 0)
    assert await at(broker, TIME + 3) == (0, 4, TIME + 50, 0)
    assert await at(broker, TIME + 51) == (0, -1, -1, -1), "no such record is no error"
    assert await at(broker, -3) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1)


async def test_read_committed_ends_at_the_last_stable_offset(broker: WholeBroker) -> None:
    await broker.lead(TP.topic)
    await plain(broker, b"0", time=TIME)
    _, *producer = await broker.init()
    await broker.add(*producer, TP)
    assert await broker.produce(TP, b"1", producer=(producer[0], producer[1]), sequence=0, time=TIME + 10) == 0
    assert await at(broker, -1) == (0, 2, -1, 0)
    assert await at(broker, -1, isolation_level=1) == (0, 1, -1, 0)
    assert await at(broker, TIME + 5) == (0, 1, TIME + 10, 0)
    assert await at(broker, TIME + 5, isolation_level=1) == (0, -1, -1, -1), "it is not below the bound"
    assert await broker.end(*producer, commit=True) == 0
    await broker.settled(lambda: broker.log(TP).last_stable_offset == 3)
    assert await at(broker, -1, isolation_level=1) == (0, 3, -1, 0)
    assert await at(broker, TIME + 5, isolation_level=1) == (0, 1, TIME + 10, 0)


async def test_deleted_records_are_not_found(broker: WholeBroker) -> None:
    await broker.lead(TP.topic)
    await plain(broker, b"0", b"1", b"2", time=TIME)
    cls = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    entry = cls.DeleteRecordsPartition(partition_index=0, offset=2)
    await broker.ask(ApiKey.DELETE_RECORDS, 1, topics=[cls(name=TP.topic, partitions=[entry])], timeout_ms=1000)
    assert await at(broker, -2) == (0, 2, -1, 0)
    assert await at(broker, TIME) == (0, 2, TIME + 2, 0)


async def test_one_partition_twice(broker: WholeBroker) -> None:
    await broker.lead(TP.topic, 2)
    found = await ask_offsets(broker, (0, -1), (1, -1), (0, -2))
    codes = [(entry.partition_index, entry.error_code) for entry in found]
    assert codes == [(0, ErrorCode.INVALID_REQUEST), (1, 0), (0, ErrorCode.INVALID_REQUEST)]


async def test_nobody_may_ask_for_offsets_without_describe(broker: WholeBroker) -> None:
    await broker.lead(TP.topic)
    broker.guard.denied.add((Operation.DESCRIBE, TP.topic))
    assert await at(broker, -1) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1)
    broker.guard.denied.add((Operation.CLUSTER_ACTION, "kafka-cluster"))
    assert await epoch_end(broker, 0) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1)


async def epoch_end(
    broker: WholeBroker, epoch: int, *, current: int = -1, topic: str = TP.topic, version: int = 3
) -> tuple[int, int, int]:
    cls = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH).OffsetForLeaderTopic
    entry = cls.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    answer = await broker.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[cls(topic=topic, partitions=[entry])]
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.leader_epoch, found.end_offset


@pytest.mark.case("EPO-12")
async def test_the_end_of_an_epoch(broker: WholeBroker) -> None:
    """The epochs 0 and 3 have records; 1 and 2 had none."""
    await broker.lead(TP.topic)
    await plain(broker, b"0", b"1", time=TIME)
    await broker.lead(TP.topic, epoch=3)
    await plain(broker, b"2", time=TIME)
    assert await epoch_end(broker, 0) == (0, 0, 2)
    assert await epoch_end(broker, 2) == (0, 0, 2), "the largest epoch that is not above it"
    assert await epoch_end(broker, 3) == (0, 3, 3), "the last epoch ends at the log end"
    assert await epoch_end(broker, 4) == (0, -1, -1)
    assert await epoch_end(broker, 3, current=3) == (0, 3, 3)
    assert (await epoch_end(broker, 3, current=2))[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert (await epoch_end(broker, 3, current=4))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await epoch_end(broker, 0, topic="nowhere"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await epoch_end(broker, 0, version=0))[::2] == (0, 2), "version 0 has no epoch in its answer"


@pytest.mark.case("EPO-12")
async def test_only_the_leader_knows_where_an_epoch_ends(broker: WholeBroker) -> None:
    await broker.lead(TP.topic, leader=2, isr=2)
    assert await epoch_end(broker, 0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
