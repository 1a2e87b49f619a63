"""Where a key's state lives, and how the coordinators' topics come to exist."""

from __future__ import annotations

import asyncio

import pytest

from klamm.broker.coordinators.internal_topic import partition_for
from klamm.broker.handlers import find_coordinator
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.partition import Assignment
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.znodes import config, topic

from .one_broker import OneBroker, one

__all__ = ["one"]

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
GROUP, TRANSACTION = 0, 1


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        *(("", 0), ("test", 48), ("my-group", 12), ("groupId", 18), ("otherGroup", 13)),
        ("grüppe-😀", 14),  # two UTF-16 units for the last character
        ("polygenelubricants", 0),  # its hash is -2**31
    ],
)
def test_the_partition_of_a_key_is_that_of_java(key: str, partition: int) -> None:
    assert partition_for(key, 50) == partition


async def find(one: OneBroker, key: str, key_type: int = GROUP, version: int = 3) -> tuple[int, int, str, int]:
    answer = await one.ask(ApiKey.FIND_COORDINATOR, version, key=key, key_type=key_type)
    return answer.error_code, answer.node_id, answer.host, answer.port


NOT_AVAILABLE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_coordinator, "LEADER_WAIT_S", 0)


@pytest.mark.parametrize("moment", ["not informed", "no topic", "no leader", "a dead leader"])
async def test_the_answer_waits_for_a_leader(one: OneBroker, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Otherwise librdkafka gives up for good: it takes no more than three refusals within half a second."""
    monkeypatch.setattr(find_coordinator, "LEADER_WAIT_S", 60)
    if moment != "not informed":
        await one.told()
    if moment == "no leader":
        await one.told(topic_name=OFFSETS, partitions=50, leader=-1)
    elif moment == "a dead leader":
        await one.told(topic_name=OFFSETS, partitions=50, leader=3)
    if moment != "no topic":
        one.zk.put(topic.path(OFFSETS), topic.encode(dict.fromkeys(range(50), Assignment((1, 2)))))
    asking = asyncio.create_task(find(one, "test"))
    await asyncio.sleep(0.01)
    assert not asking.done()
    await one.told(topic_name=OFFSETS, partitions=50, leader=2)
    async with asyncio.timeout(5):
        assert await asking == (ErrorCode.NONE, 2, "host2", 9092)


async def test_the_first_question_creates_the_topic(one: OneBroker) -> None:
    assert await find(one, "test") == NOT_AVAILABLE, "not informed yet"
    assert not one.zk.tree.writes
    await one.told()
    assert await find(one, "test") == NOT_AVAILABLE
    created = topic.decode("", one.zk.data(topic.path(OFFSETS))).partitions
    assert len(created) == 50
    assert {len(assignment.replicas) for assignment in created.values()} == {2}
    assert config.decode("", one.zk.data(config.topic_path(OFFSETS))) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    await one.told(topic_name=OFFSETS, partitions=50, leader=2)
    for version in (0, 1, 2, 3):
        assert await find(one, "test", version=version) == (ErrorCode.NONE, 2, "host2", 9092)
    text = (await one.ask(ApiKey.FIND_COORDINATOR, 1, key="test", key_type=GROUP)).error_message
    assert text == "NONE"


async def test_too_few_brokers_for_the_topic(one: OneBroker) -> None:
    await one.told()
    assert await find(one, "id", TRANSACTION) == NOT_AVAILABLE, "three replicas, two brokers"
    assert TRANSACTIONS not in one.zk.tree.children(topic.PARENT)
    await one.told(alive=(1, 2, 3))
    assert await find(one, "id", TRANSACTION) == NOT_AVAILABLE
    assert config.decode("", one.zk.data(config.topic_path(TRANSACTIONS))) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


async def test_no_live_leader_or_no_endpoint_on_the_listener(one: OneBroker) -> None:
    one.zk.put(topic.path(OFFSETS), topic.encode(dict.fromkeys(range(50), Assignment((1, 2)))))
    await one.told(topic_name=OFFSETS, partitions=50, leader=3)
    assert await find(one, "test") == NOT_AVAILABLE
    await one.told(topic_name=OFFSETS, partitions=50, leader=2, listeners=("INTERNAL",))
    assert await find(one, "test") == NOT_AVAILABLE


async def test_rights_and_kinds(one: OneBroker) -> None:
    await one.told()
    one.guard.denied = {(Operation.DESCRIBE, "secret")}
    assert (await find(one, "secret"))[0] == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert (await find(one, "secret", TRANSACTION))[0] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (await find(one, "open", 2))[0] == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_the_count_is_that_of_zookeeper(one: OneBroker) -> None:
    """Another broker created the topic with 7 partitions. One of them has no leader yet, so metadata lacks it."""
    assert one.offsets_topic.known_partition_of("test") is None
    with pytest.raises(KafkaError) as refused:
        await one.offsets_topic.partition_of("test")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    one.zk.put(topic.path(OFFSETS), topic.encode(dict.fromkeys(range(7), Assignment((1, 2)))))
    await one.told(topic_name=OFFSETS, partitions=6)
    expected = TopicPartition(OFFSETS, partition_for("test", 7))
    assert await one.offsets_topic.partition_of("test") == expected
    assert one.offsets_topic.known_partition_of("test") == expected


async def test_a_coordinators_topic_does_not_grow(one: OneBroker) -> None:
    one.zk.put(topic.path(OFFSETS), topic.encode(dict.fromkeys(range(7), Assignment((1, 2)))))
    await one.told(topic_name=OFFSETS, partitions=7)
    cls = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    growth = [cls(name=OFFSETS, count=9, assignments=None)]
    answer = await one.ask(ApiKey.CREATE_PARTITIONS, 1, topics=growth, timeout_ms=1000, validate_only=False)
    assert [result.error_code for result in answer.results] == [ErrorCode.INVALID_REQUEST]
