"""Which topics are valid, what is written for them, and producer ids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from klamm.admin.placement import PlacementBroker
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import NewTopic, TopicAdmin, colliding, validate_name
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.zookeeper.znodes import config, delete_topics, producer_id_block, topic

BROKERS = [PlacementBroker(BrokerId(b)) for b in (1, 2, 3)]


@pytest.fixture
def admin(zk: Any, clock: Any) -> TopicAdmin:
    return TopicAdmin(
        zk,
        random.Random(1),
        TopicConfigs(zk, clock, TopicConfig(), 1.0),
        partitions_default=2,
        replication_factor_default=3,
    )


def refusal(admin: TopicAdmin, new: NewTopic) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        admin.plan(new, BROKERS)
    return refused.value.code


@pytest.mark.parametrize("name", ["a", "a.b_c-9", "x" * 249, "..."])
def test_good_names(name: str) -> None:
    validate_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ä", "a\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        validate_name(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.case("TOP-03")
async def test_names_that_differ_only_in_dot_and_underscore(admin: TopicAdmin) -> None:
    assert colliding("test_topic", ["test.topic", "other"]) == ["test.topic"]
    await admin.create(admin.plan(NewTopic("test.topic"), BROKERS))
    with pytest.raises(KafkaError) as refused:
        await admin.create(admin.plan(NewTopic("test_topic"), BROKERS))
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.case("TOP-01")
@pytest.mark.parametrize("assignment", [{0: [1, 1]}, {0: [1], 1: [1, 2]}, {1: [1]}, {0: [1], 2: [1]}, {0: []}])
def test_bad_assignments(admin: TopicAdmin, assignment: dict[int, list[int]]) -> None:
    chosen = {p: [BrokerId(b) for b in replicas] for p, replicas in assignment.items()}
    assert refusal(admin, NewTopic("t", assignment=chosen)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.case("TOP-20", "TOP-21")
@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", configs={"no.such.key": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (NewTopic("t", partitions=1, assignment={0: [BrokerId(1)]}), ErrorCode.INVALID_REQUEST),
    ],
)
def test_refusals(admin: TopicAdmin, new: NewTopic, code: ErrorCode) -> None:
    assert refusal(admin, new) is code


@pytest.mark.case("TOP-02")
async def test_manual_assignment_is_stored_and_the_second_creation_refused(admin: TopicAdmin, zk: Any) -> None:
    new = NewTopic("t", assignment={0: [BrokerId(3), BrokerId(9)]}, configs={"retention.ms": "5"})
    planned = admin.plan(new, BROKERS)
    await admin.create(planned)
    stored = topic.decode("", zk.data(topic.path("t")))
    assert stored.partitions[0] == ((3, 9), (), ())
    assert config.decode("", zk.data(config.topic_path("t"))) == {"retention.ms": "5"}
    with pytest.raises(KafkaError) as refused:
        await admin.create(planned)
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_defaults_and_leftover_configuration(admin: TopicAdmin, zk: Any) -> None:
    zk.put(config.topic_path("t"), config.encode({"retention.ms": "1"}))
    planned = admin.plan(NewTopic("t"), BROKERS)
    assert (len(planned.replicas), planned.replication_factor) == (2, 3)
    await admin.create(planned)
    assert config.decode("", zk.data(config.topic_path("t"))) == {}, "nothing of the earlier topic is inherited"


async def test_not_while_it_is_being_deleted(admin: TopicAdmin, zk: Any) -> None:
    await admin.mark_for_deletion("t")
    await admin.mark_for_deletion("t")
    with pytest.raises(KafkaError) as refused:
        await admin.create(admin.plan(NewTopic("t"), BROKERS))
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert delete_topics.path("t") in zk.tree.nodes


async def test_topic_configuration_survives_bad_content(zk: Any, clock: Any) -> None:
    zk.put(config.topic_path("a"), config.encode({"retention.ms": "5", "no.such": "1", "segment.ms": "x"}))
    zk.put(config.topic_path("b"), b"garbage")
    configs = await TopicConfigs(zk, clock, TopicConfig(), 1.0).read(["a", "b", "c"])
    assert configs["a"] == TopicConfig(retention_ms=5)
    assert configs["b"] == configs["c"] == TopicConfig()


async def test_producer_ids_in_blocks(zk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.zookeeper.retries.RECONNECT_PAUSE_S", 0)
    zk.put(producer_id_block.PATH, None)
    one, two = ProducerIds(zk, BrokerId(1)), ProducerIds(zk, BrokerId(2))
    assert [await one.take(), await one.take(), await two.take()] == [0, 1, 1000]
    zk.lose_answers = ["applied"]
    three = ProducerIds(zk, BrokerId(3))
    assert await three.take() == 2000, "the write whose answer was lost is recognised"
    zk.lose_answers = ["dropped"]
    assert await ProducerIds(zk, BrokerId(1)).take() == 3000
    for _ in range(998):
        await one.take()
    assert await one.take() == 4000


@pytest.mark.parametrize(("state", "left"), [("kept", 3), ("being deleted", 0), ("deleted", 0), ("smaller", 1)])
async def test_the_partitions_that_are_left_of_a_topic(admin: TopicAdmin, zk: Any, state: str, left: int) -> None:
    """A transaction marker waits for a partition that is left, and only for such a one."""
    assignments = {number: Assignment((BrokerId(1),)) for number in range(1 if state == "smaller" else 3)}
    if state != "deleted":
        zk.put(topic.path("orders"), topic.encode(assignments))
    if state == "being deleted":
        zk.put(delete_topics.path("orders"))
    assert await admin.partitions_left("orders") == left
