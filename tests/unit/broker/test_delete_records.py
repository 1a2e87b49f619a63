"""DeleteRecords as a client sees it, and the low watermark that it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, TopicPartition
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

from .one_broker import TP, OneBroker, lead, one

__all__ = ["one"]


@pytest.fixture
async def leading(one: OneBroker, make_order: Any) -> OneBroker:
    """This broker leads `orders`-0 with 10 records, of which 6 are committed; broker 2 follows it."""
    await one.told()
    log = await lead(one, make_order, isr=(1, 2))
    log.data += b"0123456789"
    log.high_watermark = 6
    return one


async def delete(
    one: OneBroker, offset: int, *, version: int = 1, topic: str = "orders", timeout_ms: int = 20
) -> tuple[int, int]:
    """(error, low watermark)"""
    cls = request_class(ApiKey.DELETE_RECORDS).DeleteRecordsTopic
    partition = cls.DeleteRecordsPartition(partition_index=0, offset=offset)
    answer = await one.ask(
        ApiKey.DELETE_RECORDS, version, topics=[cls(name=topic, partitions=[partition])], timeout_ms=timeout_ms
    )
    ((found,),) = [topic.partitions for topic in answer.topics]
    assert (answer.topics[0].name, found.partition_index) == (topic, 0)
    return found.error_code, found.low_watermark


@pytest.mark.parametrize("version", [0, 1])
async def test_it_waits_for_the_follower(leading: OneBroker, version: int) -> None:
    deleting = asyncio.create_task(delete(leading, 4, version=version, timeout_ms=5_000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert leading.logs.kept[TP].log_start_offset == 4
    leading.replicas.follower_fetched(TP, BrokerId(2), 10, 3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not deleting.done(), "the follower still has record 3"
    leading.replicas.follower_fetched(TP, BrokerId(2), 10, 4)
    assert await deleting == (0, 4)


async def test_a_follower_that_is_down_does_not_count(leading: OneBroker) -> None:
    await leading.told(alive=(1,))
    assert await delete(leading, 5) == (0, 5)
    assert await delete(leading, 2) == (0, 5), "nothing to do"
    assert await delete(leading, -1) == (0, 6), "up to the high watermark"


async def test_a_timeout_tells_the_low_watermark_of_the_beginning(leading: OneBroker) -> None:
    leading.replicas.follower_fetched(TP, BrokerId(2), 10, 1)
    assert await delete(leading, 4) == (ErrorCode.REQUEST_TIMED_OUT, 1)
    assert leading.logs.kept[TP].log_start_offset == 4, "the deletion goes on"


async def test_the_wait_ends_when_another_broker_leads(leading: OneBroker, make_order: Any) -> None:
    deleting = asyncio.create_task(delete(leading, 4, timeout_ms=5_000))
    for _ in range(5):
        await asyncio.sleep(0)
    partition = leading.replicas.partitions[TP]
    partition.make_follower(make_order(leader=2, epoch=1, replicas=(1, 2)), leading.logs.kept[TP])
    leading.replicas.moved(TP)
    assert await deleting == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize(
    ("offset", "topic", "policy", "code"),
    [
        (7, "orders", "delete", ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, "orders", "delete", ErrorCode.OFFSET_OUT_OF_RANGE),
        (2, "orders", "compact", ErrorCode.POLICY_VIOLATION),
        (2, "__consumer_offsets", "delete", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (2, "missing", "delete", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "secret", "delete", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
async def test_what_is_refused(leading: OneBroker, offset: int, topic: str, policy: str, code: ErrorCode) -> None:
    leading.guard.denied = {(Operation.DELETE, "secret")}
    object.__setattr__(leading.logs.kept[TP].config, "cleanup_policy", (policy,))
    assert await delete(leading, offset, topic=topic) == (code, -1)
    assert leading.logs.kept[TopicPartition("orders", 0)].log_start_offset == 0
