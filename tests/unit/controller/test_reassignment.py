"""Reassignment as conversations: the whole sequence that Kafka produces, and reassignments that are found half done.

A1 and A2 are one batch here: the new replica receives LeaderAndIsr once, with is_new (KAFKA-10314).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.testing.zookeeper import InMemoryTree
from klamm.wire.apis import ApiKey
from klamm.wire.control.schema_requests import iter_partition_states

from .scenario import Scenario
from .test_traces import requests, writes

TP = TopicPartition("t", 0)
STATE = "/brokers/topics/t/partitions/0/state"
ZNODE = "/admin/reassign_partitions"
MOVING = {"version": 2, "partitions": {"0": [2, 3, 1]}, "adding_replicas": {"0": [3]}, "removing_replicas": {"0": [1]}}


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, ids))


def znode(*entries: tuple[str, int, Sequence[int]]) -> str:
    partitions = [{"topic": t, "partition": p, "replicas": list(r)} for t, p, r in entries]
    return json.dumps({"version": 1, "partitions": partitions})


def assigned(scenario: Scenario, topic: str = "t", partition: int = 0) -> tuple[list[int], list[int], list[int]]:
    found = json.loads(scenario.zk.text(f"/brokers/topics/{topic}"))
    moving = (found.get(key, {}).get(str(partition), []) for key in ("adding_replicas", "removing_replicas"))
    adding, removing = moving
    return found["partitions"][str(partition)], adding, removing


async def alter(scenario: Scenario, target: Sequence[int] | None, name: TopicPartition = TP) -> KafkaError | None:
    wanted = None if target is None else brokers(*target)
    results = await scenario.controller.alter_partition_reassignments({name: wanted})
    await scenario.settle()
    return results[name]


def code(error: KafkaError | None) -> ErrorCode | None:
    return None if error is None else error.code


async def prepared(scenario: Scenario, replicas: Sequence[int] = (1, 2), epoch: int = 7) -> None:
    """t-0 at the start: led by its first replica, all in sync."""
    await scenario.after(lambda: scenario.create_topic("t", replicas))
    scenario.put_state("t", 0, replicas[0], epoch, replicas, 5)


@pytest.mark.case("RAS-11")
async def test_the_trace() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        version = scenario.state("t", 0)[3]
        assert await scenario.controller.list_partition_reassignments(None) == {}

        assert await alter(scenario, [2, 3]) is None
        talk = scenario.talk()
        assert writes(talk) == [
            'set /brokers/topics/t {"version":2,"partitions":{"0":[2,3,1]},'
            '"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]}}',
            f'set {STATE} {{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":8,"isr":[1,2]}}',
        ]
        v = version + 1
        metadata = f"UpdateMetadata {{t-0 leader 1 e8 isr [1, 2] v{v}}} live [1, 2, 3, 9]"
        for broker in (1, 2):
            assert requests(talk, broker) == [f"LeaderAndIsr {{t-0 leader 1 e8 isr [1, 2] v{v}}}", metadata]
        assert requests(talk, 3) == [f"LeaderAndIsr {{t-0 leader 1 e8 isr [1, 2] v{v} new}}", metadata]
        moving = {TP: Assignment(brokers(2, 3, 1), brokers(3), brokers(1))}
        assert await scenario.controller.list_partition_reassignments(None) == moving
        assert await scenario.controller.list_partition_reassignments([TopicPartition("t", 9)]) == {}
        ((name, reason),) = scenario.controller.statistics().reassignments
        assert (name, reason) == ("t-0", "brokers [3] to join the ISR [1, 2] of leader 1")

        # The leader adds 3 to the ISR: the watch completes the reassignment.
        talk = await scenario.after(lambda: scenario.put_state("t", 0, 1, 8, [1, 2, 3], 5))
        assert writes(talk) == [
            f'set {STATE} {{"controller_epoch":5,"leader":2,"version":1,"leader_epoch":9,"isr":[1,2,3]}}',
            f'set {STATE} {{"controller_epoch":5,"leader":2,"version":1,"leader_epoch":10,"isr":[2,3]}}',
            'set /brokers/topics/t {"version":2,"partitions":{"0":[2,3]},"adding_replicas":{},"removing_replicas":{}}',
        ]
        assert requests(talk, 2) == requests(talk, 3)
        assert requests(talk, 2) == [
            f"LeaderAndIsr {{t-0 leader 2 e9 isr [1, 2, 3] v{v + 2}}}",
            f"UpdateMetadata {{t-0 leader 2 e9 isr [1, 2, 3] v{v + 2}}} live [1, 2, 3, 9]",
            f"LeaderAndIsr {{t-0 leader 2 e10 isr [2, 3] v{v + 3}}}",
            f"UpdateMetadata {{t-0 leader 2 e10 isr [2, 3] v{v + 3}}} live [1, 2, 3, 9]",
            f"UpdateMetadata {{t-0 leader 2 e10 isr [2, 3] v{v + 3}}} live [1, 2, 3, 9]",
        ]
        stops = [line for line in requests(talk, 1) if line.startswith("StopReplica")]
        assert stops == ["StopReplica2 t-0 e-1", "StopReplica2 t-0 delete e-1"]
        assert scenario.controller.statistics().reassignments == ()
        bodies = [
            body for broker, key, body in scenario.network.requests if broker == 3 and key.name == "LEADER_AND_ISR"
        ]
        assert [list(s.replicas) for body in bodies for t in body.topic_states for s in t.partition_states] == [
            [2, 3, 1],
            [2, 3],
            [2, 3],
        ]


@pytest.mark.case("CTL-12")
async def test_a_single_replica_moves_by_the_znode() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [2]))))
        assert scenario.state("t", 0)[:3] == (1, 1, [1])
        await scenario.after(lambda: scenario.put_state("t", 0, 1, 1, [1, 2], 5))
        assert scenario.state("t", 0)[:3] == (
            2,
            3,
            [2],
        )  # raised by the start, by the new leader, and when the old one left the ISR
        assert assigned(scenario) == ([2], [], [])
        assert ZNODE not in scenario.zk.tree.nodes
        timer = scenario.metrics.timer("kafka.controller", "ControllerStats", "PartitionReassignmentRateAndTimeMs")
        assert timer.count > 0


@pytest.mark.case("RAS-14")
async def test_only_what_moves_is_listed() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [1, 2], [1, 2]))
        names = [TopicPartition("t", n) for n in range(3)]
        targets = {names[0]: brokers(2, 3), names[1]: brokers(3, 1)}
        assert await scenario.controller.alter_partition_reassignments(targets) == {names[0]: None, names[1]: None}
        listed = await scenario.controller.list_partition_reassignments([*names, TopicPartition("nobody", 0)])
        assert listed == {
            names[0]: Assignment(brokers(2, 3, 1), brokers(3), brokers(1)),
            names[1]: Assignment(brokers(3, 1, 2), brokers(3), brokers(2)),
        }


RESUMED = {
    "U1 written": (MOVING, (1, 7, [1, 2])),
    "A1 written": (MOVING, (1, 8, [1, 2])),
    "in sync": (MOVING, (1, 8, [1, 2, 3])),
    "B3 written": (MOVING, (2, 9, [1, 2, 3])),
    "B4 written": (MOVING, (2, 10, [2, 3])),
}


@pytest.mark.parametrize("found", RESUMED)
async def test_the_next_controller_finishes_whatever_it_finds(found: str) -> None:
    scenario = Scenario()
    scenario.prepare(1, 2, 3)
    document, (leader, epoch, isr) = RESUMED[found]
    scenario.zk.put("/brokers/topics/t", json.dumps(document))
    scenario.put_state("t", 0, leader, epoch, isr, 4)
    async with scenario.controller.running():
        await scenario.settle()
        if 3 not in isr:
            # It sent everything again, with a new epoch, and waits.
            assert scenario.state("t", 0)[:3] == (leader, epoch + 1, isr)
            lines = requests(scenario.talk(), 1)
            assert f"LeaderAndIsr {{t-0 leader 1 e{epoch + 1} isr [1, 2] v1}}" in lines
            scenario.put_state("t", 0, leader, epoch + 1, [1, 2, 3], 5)
            await scenario.settle()
        assert assigned(scenario) == ([2, 3], [], [])
        leader, _, isr, _ = scenario.state("t", 0)
        assert (leader, isr) == (2, [2, 3])
        assert "StopReplica2 t-0 delete e-1" in requests(scenario.talk(), 1)


def expire_before(scenario: Scenario, nth: int) -> None:
    """The session expires just before the controller's n-th transaction."""
    late_write(scenario, nth + 1, scenario.zk.expire)


async def follow(scenario: Scenario) -> None:
    """What brokers do: the leader adds replicas that received LeaderAndIsr to the ISR."""
    for _ in range(3):
        await scenario.settle()
        leader, epoch, isr, _ = scenario.state("t", 0)
        if 3 in assigned(scenario)[0] and 3 not in isr and epoch > 7 and leader != -1:
            scenario.put_state("t", 0, leader, epoch, [*isr, 3], 5)


async def test_killed_before_each_write_and_finished_by_the_next() -> None:
    """The controller loses its session just before each write of a clean run in turn."""
    writes_seen = 0
    for kill_at in range(100):
        tree = InMemoryTree()
        first = Scenario(tree, session_id=1)
        first.prepare(1, 2, 3)
        first.create_topic("t", [1, 2])
        first.put_state("t", 0, 1, 7, [1, 2], 4)
        first.zk.put(ZNODE, znode(("t", 0, [2, 3])))
        expire_before(first, kill_at)
        async with first.controller.running():
            await follow(first)
            killed = first.zk.expired
        second = Scenario(tree, session_id=2)
        async with second.controller.running():
            await follow(second)
            assert assigned(second) == ([2, 3], [], []), kill_at
            leader, _, isr, _ = second.state("t", 0)
            assert (leader, isr) == (2, [2, 3]), kill_at
            assert ZNODE not in tree.nodes
        if not killed:
            writes_seen = kill_at
            break
    assert writes_seen >= 8


async def test_a_lost_answer_to_the_topic_znode_is_read_back() -> None:
    for lost in ("applied", "dropped"):
        async with Scenario().running(1, 2, 3) as scenario:
            await prepared(scenario)
            scenario.zk.lose_answers = [lost]
            assert await alter(scenario, [2, 3]) is None
            assert assigned(scenario) == ([2, 3, 1], [3], [1])
            assert len([line for line in writes(scenario.talk()) if "set /brokers/topics/t " in line]) == 1


async def test_growth_at_the_same_time_is_not_overwritten() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        scenario.zk.before_write = lambda: scenario.create_topic("t", [1, 2], [2, 1])
        assert await alter(scenario, [2, 3]) is None
        assert assigned(scenario) == ([2, 3, 1], [3], [1])
        assert assigned(scenario, partition=1) == ([2, 1], [], [])
        assert scenario.state("t", 1)[:3] == (2, 0, [2, 1])


async def test_what_could_not_be_written_into_a_broken_topic_znode_is_written_when_it_is_mended() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        assert await alter(scenario, [2, 3]) is None
        document = scenario.zk.text("/brokers/topics/t")
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", "{"))
        leader, epoch, _, _ = scenario.state("t", 0)
        await scenario.after(lambda: scenario.put_state("t", 0, leader, epoch, (1, 2, 3), 5))
        assert scenario.controller.statistics().reassignments == (("t-0", "its topic znode to be written"),)
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", document))
        assert assigned(scenario) == ([2, 3], [], [])


@pytest.mark.case("RAS-12")
async def test_refusals() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        for target in ([], [1, 1], [-1, 1], [1, 7]):
            assert code(await alter(scenario, target)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT, target
        for unknown in (TopicPartition("nobody", 0), TopicPartition("t", 1)):
            assert code(await alter(scenario, [1], unknown)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert code(await alter(scenario, [], unknown)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert code(await alter(scenario, None, unknown)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert code(await alter(scenario, None)) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert scenario.talk() == []
        unknown = TopicPartition("nobody", 0)
        mixed = await scenario.controller.alter_partition_reassignments({TP: brokers(2, 3), unknown: brokers(1)})
        assert {n: code(e) for n, e in mixed.items()} == {TP: None, unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_not_the_controller() -> None:
    scenario = Scenario()
    scenario.prepare(1)
    scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=77)
    async with scenario.controller.running():
        await scenario.settle()
        for call in (
            scenario.controller.alter_partition_reassignments({TP: None}),
            scenario.controller.list_partition_reassignments(None),
            scenario.controller.elect_leaders(None, UncleanElection.FORBIDDEN),
        ):
            with pytest.raises(KafkaError) as refused:
                await call
            assert refused.value.code is ErrorCode.NOT_CONTROLLER


async def test_cancel_stops_what_was_added() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        scenario.talk()
        assert await alter(scenario, None) is None
        talk = scenario.talk()
        # The target came first in the list, so the original order is lost.
        assert assigned(scenario) == ([2, 1], [], [])
        assert scenario.state("t", 0)[:3] == (1, 9, [1, 2])
        assert requests(talk, 3)[-1].startswith("UpdateMetadata")
        assert [r for r in requests(talk, 3) if "Stop" in r] == ["StopReplica2 t-0 e-1", "StopReplica2 t-0 delete e-1"]
        assert not any("LeaderAndIsr" in r for r in requests(talk, 3))
        assert scenario.controller.statistics().reassignments == ()


async def test_brokers_hear_the_new_lists_before_what_was_added_is_stopped() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        heard = len(scenario.network.requests)
        await alter(scenario, None)
        told = [
            list(state.replicas)
            for broker, key, body in scenario.network.requests[heard:]
            if broker == 3 and key is ApiKey.UPDATE_METADATA
            for _, state in iter_partition_states(body)
        ]
        assert told and all(replicas == [2, 1] for replicas in told)


async def test_cancel_while_the_leader_takes_the_added_replica_in() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        late_write(scenario, 1, lambda: scenario.put_state("t", 0, 1, 8, [1, 2, 3], 5))  # just before the fence
        assert await alter(scenario, None) is None
        assert scenario.state("t", 0)[:3] == (1, 10, [1, 2])


@pytest.mark.parametrize("target", [None, [2, 4]])
async def test_the_leader_is_fenced_before_a_replica_outside_the_isr_is_deleted(target: list[int] | None) -> None:
    """A leader that has not heard of the cancellation would add 3 to the ISR just before its replica is deleted."""
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        _, epoch, isr, version = scenario.state("t", 0)
        assert 3 not in isr
        refused: list[bool] = []

        def add_the_replica() -> None:
            """Just before the fence of StopReplica: the leader writes with the version that it knows."""
            leader, now_epoch, _, now_version = scenario.state("t", 0)
            refused.append(now_version > version)
            assert (leader, now_epoch) == (1, epoch + 1)

        late_write(scenario, 2, add_the_replica)
        scenario.talk()
        assert await alter(scenario, target) is None
        assert refused == [True]
        told = next(line for line in scenario.talk() if line.startswith("1 <- LeaderAndIsr"))
        assert f"e{epoch + 1} isr {isr}" in told


def late_write(scenario: Scenario, nth: int, write: Callable[[], None]) -> None:
    """Another writer changes the node just before the n-th transaction from now."""

    def count_down(left: int) -> None:
        if left == 1:
            write()
        else:
            scenario.zk.before_write = lambda: count_down(left - 1)

    scenario.zk.before_write = lambda: count_down(nth)


async def test_cancel_when_the_added_replica_leads() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [3, 4])
        scenario.put_state("t", 0, 3, 8, [3, 2], 5)
        assert await alter(scenario, None) is None
        # It leaves the ISR, so the partition has no leader; then one of those that stay is elected.
        assert scenario.state("t", 0)[:3] == (2, 10, [2])
        assert assigned(scenario) == ([1, 2], [], [])
        talk = scenario.talk()
        for broker in (3, 4):
            assert "StopReplica2 t-0 delete e-1" in requests(talk, broker)


async def test_override_when_the_added_replica_leads() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [3, 4])
        scenario.put_state("t", 0, 3, 8, [3, 2], 5)
        assert await alter(scenario, [4, 2]) is None
        assert assigned(scenario) == ([4, 2, 1], [4], [1])
        assert (scenario.state("t", 0)[0], scenario.state("t", 0)[2]) == (2, [2])
        assert scenario.controller.statistics().counts.offline_partitions == 0


async def test_an_override_that_leaves_nobody_to_lead_waits_for_the_one_in_sync() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [3, 4])
        await scenario.after(lambda: scenario.stop_broker(2))
        scenario.put_state("t", 0, 3, 20, [3, 2], 5)
        assert await alter(scenario, [4, 2]) is None
        assert scenario.state("t", 0)[0] == -1
        await scenario.after(lambda: scenario.start_broker(2))
        assert scenario.state("t", 0)[0] == 2


async def test_no_replica_is_given_up_if_it_alone_has_the_records() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [3, 4])
        scenario.put_state("t", 0, 3, 8, [3], 5)
        await scenario.settle()
        scenario.talk()
        assert code(await alter(scenario, None)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert assigned(scenario) == ([3, 4, 1, 2], [3, 4], [1, 2])
        assert scenario.state("t", 0)[:3] == (3, 8, [3])
        assert not any("delete" in line for line in scenario.talk())


async def test_no_replica_is_given_up_if_it_alone_has_the_records_and_is_away() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        scenario.put_state("t", 0, 3, 8, [3], 5)
        await scenario.after(lambda: scenario.stop_broker(3))
        assert code(await alter(scenario, None)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert assigned(scenario) == ([2, 3, 1], [3], [1])
        assert scenario.state("t", 0)[2] == [3]


async def test_no_replica_is_given_up_while_the_state_cannot_be_read() -> None:
    """A new controller that could not read the ISR does not know which replica has the records."""
    scenario = Scenario()
    scenario.prepare(1, 2, 3)
    scenario.zk.put("/brokers/topics/t", json.dumps(MOVING))
    scenario.put_state("t", 0, 3, 8, [3, 2], 4)
    scenario.zk.put(STATE, "junk")
    async with scenario.controller.running():
        await scenario.settle()
        scenario.talk()
        assert code(await alter(scenario, None)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert not any("StopReplica" in line for line in scenario.talk())
        assert assigned(scenario) == ([2, 3, 1], [3], [1])
        # Once repaired and read by the next controller, it is cancelled like any other.
        scenario.put_state("t", 0, 1, 8, [1, 2], 4)
        scenario.zk.remove("/controller")
        await scenario.settle()
        assert scenario.controller.is_active
        assert await alter(scenario, None) is None
        assert assigned(scenario) == ([2, 1], [], [])


async def test_override_keeps_the_origin_and_drops_the_first_target() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        scenario.put_state("t", 0, 1, 8, [1, 2], 5)
        await scenario.settle()
        scenario.talk()
        assert await alter(scenario, [2, 4]) is None
        talk = scenario.talk()
        assert assigned(scenario) == ([2, 4, 1], [4], [1])
        assert "StopReplica2 t-0 delete e-1" in requests(talk, 3)
        assert any("new}" in line for line in requests(talk, 4))


@pytest.mark.case("PRE-02")
async def test_another_order_changes_the_preferred_replica_and_not_the_leader() -> None:
    async with Scenario().running(1, 2) as scenario:
        await prepared(scenario)
        assert await alter(scenario, [2, 1]) is None
        assert assigned(scenario) == ([2, 1], [], [])
        assert scenario.state("t", 0)[:3] == (1, 8, [1, 2])


async def test_the_target_broker_dies_and_returns() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        await scenario.after(lambda: scenario.stop_broker(3))
        ((_, reason),) = scenario.controller.statistics().reassignments
        assert "brokers [3], which are dead" in reason
        talk = await scenario.after(lambda: scenario.start_broker(3))
        assert any(line.startswith("LeaderAndIsr {t-0 leader 1 e9") for line in requests(talk, 3))
        await scenario.after(lambda: scenario.put_state("t", 0, 1, 9, [1, 2, 3], 5))
        assert assigned(scenario) == ([2, 3], [], [])


async def test_a_topic_on_the_move_is_deleted_when_it_has_arrived() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert scenario.controller.statistics().deletions == (("t", "reassignment of t-0"),)
        assert code(await alter(scenario, [1])) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await scenario.after(lambda: scenario.put_state("t", 0, 1, 8, [1, 2, 3], 5))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_deletion_and_reassignment_do_not_wait_for_each_other() -> None:
    """A topic queued for deletion gets no elections, except to complete a reassignment, which needs a leader."""
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        await scenario.after(lambda: scenario.stop_broker(1))
        leader, epoch, isr, _ = scenario.state("t", 0)
        assert (leader, isr) == (2, [2])
        await scenario.after(lambda: scenario.put_state("t", 0, 2, epoch, [2, 3], 5))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


# --- the znode ---


@pytest.mark.case("RAS-16")
async def test_the_znode_asks_and_goes_when_all_is_done() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [2, 3]), ("nobody", 0, [1]))))
        assert json.loads(scenario.zk.text(ZNODE)) == json.loads(znode(("t", 0, [2, 3])))  # the bad entry is gone
        assert scenario.sink.decisions("reassignment-refused")
        assert TP in await scenario.controller.list_partition_reassignments(None)
        await scenario.after(lambda: scenario.put_state("t", 0, 1, 8, [1, 2, 3], 5))
        assert ZNODE not in scenario.zk.tree.nodes
        assert assigned(scenario) == ([2, 3], [], [])
        # The next znode is noticed too.
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [3, 2]))))
        assert (ZNODE in scenario.zk.tree.nodes, assigned(scenario)) == (False, ([3, 2], [], []))


async def test_a_request_does_not_outlive_its_topic() -> None:
    """It would block every request after it (KAFKA-9478)."""
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [2, 3]))))
        await scenario.after(lambda: scenario.zk.remove("/brokers/topics/t"))
        assert ZNODE not in scenario.zk.tree.nodes


@pytest.mark.case("RAS-02")
async def test_the_znode_asks_for_what_is() -> None:
    async with Scenario().running(1) as scenario:
        await prepared(scenario, [1])
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [1]))))
        assert (ZNODE in scenario.zk.tree.nodes, assigned(scenario)) == (False, ([1], [], []))


@pytest.mark.case("RAS-23")
async def test_a_znode_that_cannot_be_read_is_reported_and_left() -> None:
    async with Scenario().running(1) as scenario:
        for bad in ("{", '{"version":1,"partitions":[],"extra":1}', '{"version":1,"partitions":[{"topic":"t"}]}'):
            talk = await scenario.after(lambda bad=bad: scenario.zk.put(ZNODE, bad))  # type: ignore[misc]
            assert talk == []
        assert len(scenario.sink.decisions("znode-skipped")) == 3
        assert scenario.controller.is_active
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode()))  # empty but valid: it is deleted
        assert ZNODE not in scenario.zk.tree.nodes


async def test_a_call_overrides_the_znode() -> None:
    async with Scenario().running(1, 2, 3, 4) as scenario:
        await prepared(scenario)
        await scenario.after(lambda: scenario.zk.put(ZNODE, znode(("t", 0, [2, 3]))))
        assert await alter(scenario, [2, 4]) is None
        assert ZNODE not in scenario.zk.tree.nodes
        assert assigned(scenario) == ([2, 4, 1], [4], [1])


async def test_the_only_live_replica_is_not_dropped_while_no_target_can_lead() -> None:
    """The targets died, and the leader's last write of the ISR still names them."""
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        scenario.stop_broker(2)
        await scenario.after(lambda: scenario.stop_broker(3))
        epoch = scenario.state("t", 0)[1]
        talk = await scenario.after(lambda: scenario.put_state("t", 0, 1, epoch, [1, 2, 3], 5))
        assert not any("StopReplica" in line for line in talk)
        assert assigned(scenario) == ([2, 3, 1], [3], [1])
        leader, _, isr, _ = scenario.state("t", 0)
        assert (leader, 1 in isr) == (1, True)


async def test_a_replica_that_could_not_be_removed_from_the_isr_stays_in_the_topic_znode() -> None:
    """The topic znode is the only copy of where it is."""
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [2, 3])
        late_write(scenario, 2, lambda: scenario.put_state("t", 0, 2, 9, [1, 2, 3], 6))
        scenario.put_state("t", 0, 1, 8, [1, 2, 3], 5)
        await scenario.settle()
        assert scenario.state("t", 0)[:3] == (2, 9, [1, 2, 3])
        assert assigned(scenario) == ([2, 3, 1], [3], [1])


async def test_a_reassignment_that_removes_nothing_needs_no_leader_to_complete() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await prepared(scenario)
        await alter(scenario, [1, 2, 3])
        for broker in (1, 2, 3):
            scenario.stop_broker(broker)
            await scenario.settle()
        epoch = scenario.state("t", 0)[1]
        await scenario.after(lambda: scenario.put_state("t", 0, -1, epoch, [1, 2, 3], 5))
        assert assigned(scenario) == ([1, 2, 3], [], [])
