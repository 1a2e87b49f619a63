"""The controller is killed, or loses its session, before and after every write of each operation. The next controller
finishes, and the tree equals that of a clean run.

Equal are the set of znodes, every assignment with its adding and removing replicas, every configuration and marker, and
the leader and ISR of every partition. The controller and its epoch differ; leader epochs may be larger by
`EPOCHS_MORE_MAX`, which says why. The table of operations, writes and cuts is printed (`pytest -s`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.zookeeper.client import bulk
from klamm.zookeeper.znodes import delete_topics, preferred_replica_election, reassign_partitions
from klamm.zookeeper.znodes import topic as topic_znode

from .kill_points import OPERATIONS_PER_MULTI, Cut, Moment, Operation, Run, Tree, Way, World, run

TOPIC = "t"
REPLICAS = [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2), (2, 1, 3)]
TARGETS = [(2, 3, 4), (3, 4, 1), (4, 1, 2)]
NAMES = [TopicPartition(TOPIC, number) for number in range(len(REPLICAS))]
MOVES = {name: tuple(map(BrokerId, target)) for name, target in zip(NAMES, TARGETS, strict=False)}


async def nothing(world: World) -> None:
    await world.create_topic("other", [(1, 2), (4, 3)])
    await world.settled()


async def topic(world: World) -> None:
    await world.create_topic(TOPIC, REPLICAS)
    await nothing(world)


async def create(world: World) -> None:
    await world.create_topic(TOPIC, REPLICAS)


async def grow(world: World) -> None:
    grown = {n: Assignment(tuple(map(BrokerId, ids))) for n, ids in enumerate([*REPLICAS, (4, 2), (3, 4), (2, 4)])}
    await world.operator.set(topic_znode.path(TOPIC), topic_znode.encode(grown))


async def delete(world: World) -> None:
    await world.operator.create(delete_topics.path(TOPIC))


async def reassign_by_call(world: World) -> None:
    await world.ask(lambda controller: controller.alter_partition_reassignments(dict(MOVES)))


async def reassign_by_znode(world: World) -> None:
    await world.operator.create(reassign_partitions.PATH, reassign_partitions.encode(MOVES))


async def half_reassigned(world: World) -> None:
    """Broker 4 is added everywhere and never catches up."""
    await topic(world)
    world.lagging.add(BrokerId(4))
    await reassign_by_call(world)
    await world.until(lambda: all(name in world.brokers[4].roles for name in MOVES), "requests to broker 4")


async def cancel(world: World) -> None:
    results = await world.ask(lambda controller: controller.alter_partition_reassignments(dict.fromkeys(MOVES)))
    for error in results.values():
        # A move that the controller cancelled before it died is no longer running.
        assert error is None or error.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    world.lagging.clear()  # a follower of a cancelled move would join the ISR now


async def led_by_others(world: World) -> None:
    """Broker 1 was down, so it leads nothing."""
    await topic(world)
    await world.brokers[1].stop()
    await world.settled()
    await world.brokers[1].start()
    await world.settled()


async def elect_by_call(world: World) -> None:
    await world.ask(lambda controller: controller.elect_leaders(NAMES, UncleanElection.FORBIDDEN))


async def elect_by_znode(world: World) -> None:
    await world.operator.create(preferred_replica_election.PATH, preferred_replica_election.encode(NAMES))


async def shut_down(world: World) -> None:
    """Like a broker: ask until it leads nothing, then stop."""
    broker = world.brokers[1]
    while await world.ask(lambda controller: controller.controlled_shutdown(broker.id, broker.epoch)):
        pass
    await broker.stop()


async def fail(world: World) -> None:
    await world.brokers[1].stop()


OPERATIONS = [
    Operation("topic creation", nothing, create),
    Operation("growth", topic, grow),
    Operation("deletion", topic, delete),
    Operation("reassignment by call", topic, reassign_by_call),
    Operation("reassignment by znode", topic, reassign_by_znode),
    Operation("cancel", half_reassigned, cancel),
    Operation("preferred election by call", led_by_others, elect_by_call),
    Operation("preferred election by znode", led_by_others, elect_by_znode),
    Operation("controlled shutdown", topic, shut_down),
    Operation("broker failure", topic, fail),
]

EPOCHS_MORE_MAX = {
    # The next controller first removes a dead broker from the ISR and then elects: two epochs. Its predecessor, which
    # saw the broker die, needed one (KafkaController.onControllerFailover, onBrokerFailure).
    "controlled shutdown": 1,
    "broker failure": 1,
    # It sends a move to the brokers again with a new epoch, because it does not know what they received. The client
    # also asks again, because it got no answer.
    "reassignment by call": 2,
    "reassignment by znode": 1,
    "cancel": 2,
}
"""By how much leader epochs may exceed those of the clean run. 0 for all other operations, and never smaller."""

MAY_LEAVE_BEHIND = {"reassignment by call", "reassignment by znode", "cancel"}
"""A replica that moved away is deleted by a StopReplica whose answer the controller does not await, as in Kafka. If the
controller is killed before the request arrives, the only order to delete is lost, and files stay that ZooKeeper does
not know."""


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "WRITE_FRAME", bulk.WRITE_FRAME._replace(operations=OPERATIONS_PER_MULTI))


class Row(NamedTuple):
    operation: str
    writes: int
    killed: int
    expired: int
    left_behind: int


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    rows: list[Row] = []
    yield rows
    print(f"\n{'operation':<28} {'writes':>6} {'killed':>7} {'expired':>8} {'left behind':>12}")
    for name, *counts in rows:
        print(f"{name:<28} {counts[0]:>6} {counts[1]:>7} {counts[2]:>8} {counts[3]:>12}")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_the_next_controller_finishes(
    operation: Operation, table: list[Row], scaled: Callable[[int, int], int]
) -> None:
    """The expiry with another controller in parallel runs only in `make soak`: the next controller is not affected."""
    ways = [Way.KILLED, Way.EXPIRED] + ([Way.EXPIRED_BESIDE] if scaled(0, 1) else [])
    cuts, left_behind, wrong = Counter[Way](), 0, list[str]()
    writes = 0
    for way in ways:
        clean = run(operation, way)
        writes = len(clean.writes)
        assert writes > 0
        for write, moment in itertools.product(range(1, writes + 1), Moment):
            cut = Cut(way, write, moment)
            told, behind = _outcome(operation, cut, clean)
            cuts[way] += 1
            left_behind += bool(behind)
            where = f"{way.value}, {moment.value} write {write} {clean.writes[write - 1]}: "
            wrong += [where + one for one in told]
            if operation.name not in MAY_LEAVE_BEHIND:
                wrong += [where + one for one in behind]
    table.append(Row(operation.name, writes, cuts[Way.KILLED], cuts.total() - cuts[Way.KILLED], left_behind))
    assert not wrong, "\n".join([f"{operation.name}: {len(wrong)} differences", *wrong[:20]])


def _outcome(operation: Operation, cut: Cut, clean: Run) -> tuple[list[str], list[str]]:
    """What differs from the clean run, and what is left behind."""
    try:
        found = run(operation, cut.way, cut)
    except AssertionError as stuck:
        return [str(stuck)], []
    return differences(clean.tree, found.tree, EPOCHS_MORE_MAX.get(operation.name, 0)), found.left_behind


def differences(clean: Tree, found: Tree, epochs_more_max: int) -> list[str]:
    """Leader, ISR, assignment with adding and removing replicas, configuration, markers, every other znode."""
    told = [f"{path} exists only in one of the trees" for path in sorted(clean.paths ^ found.paths)]
    told += [
        f"{path}: {clean.data[path]!r} or {found.data[path]!r}"
        for path in sorted(clean.data.keys() & found.data.keys())
        if clean.data[path] != found.data[path]
    ]
    for name, view in clean.partitions.items():
        other = found.partitions.get(name)
        if other is None or (view.leader, view.isr) != (other.leader, other.isr):
            told.append(f"{name}: {view} or {other}")
        elif not 0 <= other.leader_epoch - view.leader_epoch <= epochs_more_max:
            told.append(f"{name}: leader epoch {view.leader_epoch} or {other.leader_epoch}")
    return told


def test_an_equal_run_is_equal_to_the_byte() -> None:
    """Otherwise the n-th write of one run would not be the n-th write of another."""
    operation = next(o for o in OPERATIONS if o.name == "reassignment by znode")
    assert run(operation, Way.KILLED) == run(operation, Way.KILLED)
