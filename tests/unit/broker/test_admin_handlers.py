"""Reassignments, elections and growth as a client sees them; the controller behind the handlers is a stub."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from klamm.admin.placement import PlacementBroker
from klamm.broker.topics import Growth, plan_growth
from klamm.log.directories.log_directory import LogDirectory
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.security.authorizer import Operation
from klamm.simulation.disk import VOLUME_BYTES, SimulatedDisk
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.znodes import delete_topics, topic

from .one_broker import TP, Controller, OneBroker, one

__all__ = ["one"]
NOT_CONTROLLER = KafkaError(ErrorCode.NOT_CONTROLLER, "another broker is")


class Admin(Controller):
    """Accepts everything about `orders`."""

    def __init__(self) -> None:
        self.targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None] = {}
        self.leader = BrokerId(2)

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        self._check()
        self.targets = targets
        unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "unknown partition")
        return {name: None if name.topic == "orders" else unknown for name in targets}

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        self._check()
        moving = {TP: Assignment((BrokerId(2), BrokerId(1)), (BrokerId(2),), (BrokerId(1),))}
        return {name: found for name, found in moving.items() if partitions is None or name in partitions}

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, unclean: UncleanElection
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        self._check()
        asked = [TP] if partitions is None else partitions
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if unclean is UncleanElection.ALLOWED:
            code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        refused = KafkaError(code, "no")
        return {name: self.leader if name == TP else refused for name in asked}

    def _check(self) -> None:
        if not self.is_active:
            raise NOT_CONTROLLER


@pytest.fixture
def admin(one: OneBroker) -> Admin:
    stub = Admin()
    object.__setattr__(one.handle._services, "controller", stub)
    return stub


async def alter(one: OneBroker, **replicas: list[int] | None) -> Any:
    cls = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS).ReassignableTopic
    topics = [
        cls(name=name, partitions=[cls.ReassignablePartition(partition_index=0, replicas=target)])
        for name, target in replicas.items()
    ]
    return await one.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout_ms=1_000)


async def test_alter_partition_reassignments(one: OneBroker, admin: Admin) -> None:
    answer = await alter(one, orders=[2, 1], nowhere=None)
    assert admin.targets == {TP: (2, 1), TopicPartition("nowhere", 0): None}
    results = {
        (t.name, p.partition_index): (p.error_code, p.error_message) for t in answer.responses for p in t.partitions
    }
    assert results == {
        ("orders", 0): (0, None),
        ("nowhere", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "unknown partition"),
    }
    assert answer.error_code == 0


@pytest.mark.case("RAS-13")
@pytest.mark.case("PRE-07")
async def test_only_the_controller_and_only_who_may(one: OneBroker, admin: Admin) -> None:
    admin.is_active = False
    altered = await alter(one, orders=[1])
    listed = await one.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout_ms=1_000)
    for answer in (altered, listed):
        assert (answer.error_code, answer.error_message) == (ErrorCode.NOT_CONTROLLER, "another broker is")
    assert (list(altered.responses), list(listed.topics)) == ([], [])
    elected = await elect(one, 1)
    assert elected == (ErrorCode.NOT_CONTROLLER, {TP: ErrorCode.NOT_CONTROLLER})
    admin.is_active = True
    one.guard.denied = {(Operation.ALTER, "kafka-cluster"), (Operation.DESCRIBE, "kafka-cluster")}
    assert (await alter(one, orders=[1])).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    listed = await one.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout_ms=1_000)
    assert listed.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (await elect(one, 2))[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_list_partition_reassignments(one: OneBroker, admin: Admin) -> None:
    cls = request_class(ApiKey.LIST_PARTITION_REASSIGNMENTS).ListPartitionReassignmentsTopics
    for topics in (None, [cls(name="orders", partition_indexes=[0, 7])]):
        answer = await one.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout_ms=1_000)
        ((name, (found,)),) = [(t.name, t.partitions) for t in answer.topics]
        assert (name, found.partition_index, list(found.replicas)) == ("orders", 0, [2, 1])
        assert (list(found.adding_replicas), list(found.removing_replicas)) == ([2], [1])
    answer = await one.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=[cls(name="x", partition_indexes=[0])], timeout_ms=1
    )
    assert list(answer.topics) == []


async def elect(
    one: OneBroker, version: int, *names: str, kind: int = 0, timeout_ms: int = 50
) -> tuple[int, dict[TopicPartition, int]]:
    cls = request_class(ApiKey.ELECT_LEADERS).TopicPartitions
    entries = [cls(topic=name, partitions=[0]) for name in names or ("orders",)]
    answer = await one.ask(
        ApiKey.ELECT_LEADERS, version, election_type=kind, topic_partitions=entries, timeout_ms=timeout_ms
    )
    results = {
        TopicPartition(t.topic, p.partition_id): p.error_code
        for t in answer.replica_election_results
        for p in t.partition_result
    }
    return (answer.error_code if version else 0), results


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_elect_leaders_waits_for_the_metadata(one: OneBroker, admin: Admin, version: int) -> None:
    await one.told(leader=1)
    electing = asyncio.create_task(elect(one, version, "orders", "other", timeout_ms=5_000))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not electing.done(), "until this broker knows its leader"
    await one.told(leader=2)
    other = TopicPartition("other", 0)
    assert await electing == (0, {TP: 0, other: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})
    await one.told(leader=1)
    assert await elect(one, version, timeout_ms=1) == (0, {TP: ErrorCode.REQUEST_TIMED_OUT})


async def test_elect_leaders_unclean_and_unknown_kinds(one: OneBroker, admin: Admin) -> None:
    await one.told(leader=2)
    other = TopicPartition("other", 0)
    assert await elect(one, 1, "other", kind=1) == (0, {other: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE})
    assert (await elect(one, 1, kind=7))[0] == ErrorCode.INVALID_REQUEST


# --- growth ---


async def grow(one: OneBroker, count: int, assignments: Any = None, *names: str, **fields: Any) -> dict[str, int]:
    cls = request_class(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    lists = None if assignments is None else [cls.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    answer = await one.ask(
        ApiKey.CREATE_PARTITIONS,
        fields.pop("version", 1),
        topics=[cls(name=name, count=count, assignments=lists) for name in names or ("orders",)],
        **{"timeout_ms": 5_000, "validate_only": False} | fields,
    )
    return {result.name: result.error_code for result in answer.results}


def partitions_of(one: OneBroker) -> dict[int, tuple[BrokerId, ...]]:
    found = topic.decode("", one.zk.data(topic.path("orders"))).partitions
    return {number: assignment.replicas for number, assignment in found.items()}


async def with_orders(one: OneBroker, *assignments: Assignment) -> None:
    await one.told()
    document = topic.encode(dict(enumerate(assignments)), "an-id")
    await one.zk.create(topic.path("orders"), document)


TWO = Assignment((BrokerId(1), BrokerId(2)))


@pytest.mark.case("TOP-12")
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_create_partitions(one: OneBroker, admin: Admin, version: int) -> None:
    await with_orders(one, TWO)
    growing = asyncio.create_task(grow(one, 3, [[2, 1], [1, 2]], version=version))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not growing.done(), "until this broker knows the new leaders"
    assert partitions_of(one) == {0: (1, 2), 1: (2, 1), 2: (1, 2)}
    assert topic.decode("", one.zk.data(topic.path("orders"))).topic_id == "an-id"
    await one.told(partitions=3)
    assert await growing == {"orders": 0}


@pytest.mark.case("TOP-15")
@pytest.mark.case("TOP-16")
@pytest.mark.case("TOP-17")
@pytest.mark.parametrize("validate_only", [False, True])
async def test_create_partitions_refused(one: OneBroker, admin: Admin, validate_only: bool) -> None:
    await with_orders(one, TWO, TWO)
    for count in (-1, 1, 2):
        assert await grow(one, count, validate_only=validate_only) == {"orders": ErrorCode.INVALID_PARTITIONS}
    for lists in ([[1]], [], [[1, 2], [2, 1]], [[1, 1]], [[1, 7]]):
        refused = await grow(one, 3, lists, validate_only=validate_only)
        assert refused == {"orders": ErrorCode.INVALID_REPLICA_ASSIGNMENT}, lists
    unknown = await grow(one, 3, None, "orders", "nowhere", validate_only=validate_only, timeout_ms=1)
    late = 0 if validate_only else ErrorCode.REQUEST_TIMED_OUT
    assert unknown == {"orders": late, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(partitions_of(one)) == (2 if validate_only else 3)


async def test_create_partitions_asks_for_rights_before_it_looks_at_the_topic(one: OneBroker, admin: Admin) -> None:
    await with_orders(one, TWO)
    names = ("orders", "__consumer_offsets", "nowhere")
    one.guard.denied = {(Operation.ALTER, name) for name in names}
    assert await grow(one, 3, None, *names) == dict.fromkeys(names, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    one.guard.denied = set()
    assert await grow(one, 3, None, "__consumer_offsets") == {"__consumer_offsets": ErrorCode.INVALID_REQUEST}


@pytest.mark.case("RAS-18")
async def test_a_topic_grows_when_its_move_is_over_and_others_meanwhile(one: OneBroker, admin: Admin) -> None:
    await with_orders(one, TWO._replace(adding=(BrokerId(2),)))
    await one.told(topic_name="idle")
    await one.zk.create(topic.path("idle"), topic.encode({0: TWO}))
    asked = await grow(one, 2, None, "orders", "idle", validate_only=True)
    assert asked == {"orders": ErrorCode.REASSIGNMENT_IN_PROGRESS, "idle": ErrorCode.NONE}
    await one.zk.set(topic.path("orders"), topic.encode({0: TWO}))
    assert await grow(one, 2, validate_only=True) == {"orders": ErrorCode.NONE}


@pytest.mark.case("TOP-18")
async def test_create_partitions_of_a_topic_that_moves_or_goes(one: OneBroker, admin: Admin) -> None:
    await with_orders(one, TWO._replace(adding=(BrokerId(2),)))
    assert await grow(one, 2) == {"orders": ErrorCode.REASSIGNMENT_IN_PROGRESS}
    await one.zk.create(delete_topics.path("orders"))
    assert await grow(one, 2) == {"orders": ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert await grow(one, 2, None, "orders", "orders") == {"orders": ErrorCode.INVALID_REQUEST}
    admin.is_active = False
    assert await grow(one, 2) == {"orders": ErrorCode.NOT_CONTROLLER}


@pytest.mark.case("TOP-09")
@pytest.mark.case("TOP-10")
@pytest.mark.case("TOP-13")
@pytest.mark.case("TOP-14")
def test_growth_goes_on_where_partition_0_began() -> None:
    brokers = [PlacementBroker(BrokerId(b)) for b in range(4)]
    full = plan_growth(Growth("t", 7), {0: Assignment(tuple(map(BrokerId, (2, 3, 0, 1))))}, brokers)
    assert [full[p].replicas[0] for p in range(1, 7)] == [3, 0, 1, 2, 3, 0]
    pairs = plan_growth(Growth("t", 3), {0: TWO}, brokers)
    assert [pairs[1].replicas, pairs[2].replicas] == [(2, 0), (3, 1)]
    with pytest.raises(KafkaError) as refused:
        plan_growth(Growth("t", 2, [tuple(map(BrokerId, (0, 1, 2)))]), {0: TWO}, brokers)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(KafkaError, match="lacks partition 0"):
        plan_growth(Growth("t", 5), {1: TWO}, brokers)


# --- log directories ---


@pytest.mark.case("LDF-04")
async def test_log_directories_with_their_space(one: OneBroker, clock: Any) -> None:
    disk = SimulatedDisk(clock, random.Random(1))
    good, bad, unmounted = (LogDirectory(disk, path) for path in ("/good", "/bad", "/unmounted"))
    for directory in (good, bad, unmounted):
        disk.make_directories(directory.path)
    bad.failure = OSError("broken")
    disk.fail("/unmounted")
    disk.room = 5_000
    one.logs.directories = [good, bad, unmounted]
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    for version, healthy, space in ((1, 0, (-1, -1)), (3, 0, (-1, -1)), (4, storage, (VOLUME_BYTES, 5_000))):
        answer = await one.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None)
        found = {e.log_dir: (e.error_code, e.total_bytes, e.usable_bytes) for e in answer.results}
        assert found == {"/good": (0, *space), "/bad": (storage, -1, -1), "/unmounted": (healthy, -1, -1)}
    one.guard.denied = {(Operation.DESCRIBE, "kafka-cluster")}
    refused = [await one.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=None) for version in (2, 3, 4)]
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert [(answer.error_code, list(answer.results)) for answer in refused] == [(0, []), (denied, []), (denied, [])]
