"""One look at a cluster, decoded and counted: brokers, topics, partitions, the controller. Values, and how they follow
from the tree in ZooKeeper. Pure.

A large cluster has 100,000 partitions but only a few hundred distinct assignments and states, which the znode codecs
share. So each pair of them is judged once (`Verdict`), a partition costs one small tuple, and everything that a page
counts is counted once per look (`Tally`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from klamm.admin.pending_deletions import waits_for
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.zookeeper.znodes import broker_id, controller, controller_epoch, partition_state, quarantine, topic
from klamm.zookeeper.znodes.kafka_tree import KafkaTree

DEFAULT_MIN_ISR = 1


class PartitionHealth(IntEnum):
    """From good to bad, so that the worst of many is their maximum."""

    IN_SYNC = 0
    MOVING = 1
    UNDER_REPLICATED = 2
    UNDER_MIN_ISR = 3
    OFFLINE = 4

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ").replace("under ", "under-").replace("min isr", "min-ISR")


class PartitionRow(NamedTuple):
    topic: str
    number: int
    assignment: Assignment
    state: LeaderAndIsr | None
    """None if it is absent or unreadable."""
    health: PartitionHealth

    @property
    def leader(self) -> int:
        return -1 if self.state is None else self.state.leader

    @property
    def isr(self) -> tuple[int, ...]:
        return () if self.state is None else self.state.isr

    @property
    def missing(self) -> tuple[int, ...]:
        """Replicas that are not in sync. A replica that is still being added does not count."""
        expected = self.assignment.original_replicas
        return tuple(broker for broker in expected if broker not in self.isr)

    @property
    def is_led_by_preferred(self) -> bool:
        return not self.assignment.replicas or self.leader == self.assignment.replicas[0]


class TopicRow(NamedTuple):
    name: str
    partitions: tuple[PartitionRow, ...]
    worst: PartitionHealth
    unhealthy: int
    """Partitions that are under-replicated or worse."""
    moving: int
    not_preferred: int
    min_isr: int
    is_being_deleted: bool
    created_ms: int | None
    """None before ZooKeeper has been read."""

    @property
    def replication_factor(self) -> int:
        return max((len(row.assignment.replicas) for row in self.partitions), default=0)


class BrokerRow(NamedTuple):
    id: int
    is_registered: bool
    """False for a broker that only assignments name."""
    endpoints: tuple[str, ...]
    rack: str | None
    since_ms: int | None
    controller_only: bool
    leaders: int
    replicas: int
    lagging: int
    """Replicas on this broker that are not in sync."""


class MarkedTopic(NamedTuple):
    topic: str
    since_ms: int
    waits_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    read_at_ms: int
    zxid: int = 0
    cluster_id: str = ""
    controller: int | None = None
    controller_epoch: int | None = None
    controller_since_ms: int | None = None
    brokers: Mapping[int, BrokerRow] = field(default_factory=dict)
    topics: Mapping[str, TopicRow] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Topics whose znode cannot be read, and why."""
    candidates: tuple[int, ...] = ()
    deletions: tuple[MarkedTopic, ...] = ()
    health: Mapping[PartitionHealth, int] = field(default_factory=dict)
    throttled_topics: tuple[str, ...] = ()
    """Topics that name throttled replicas."""
    throttles: Mapping[int, int] = field(default_factory=dict)
    """The rate of each broker that has one, in bytes per second."""

    @property
    def partitions(self) -> int:
        return sum(self.health.values())

    @property
    def not_preferred(self) -> int:
        return sum(row.not_preferred for row in self.topics.values())

    @property
    def registered(self) -> list[int]:
        return [broker.id for broker in self.brokers.values() if broker.is_registered]

    @property
    def down(self) -> list[int]:
        return [broker.id for broker in self.brokers.values() if not broker.is_registered]

    def partition(self, name: TopicPartition) -> PartitionRow | None:
        found = self.topics.get(name.topic)
        return None if found is None else next((row for row in found.partitions if row.number == name.partition), None)

    def moving(self) -> list[PartitionRow]:
        of_topics = (topic.partitions for topic in self.topics.values() if topic.moving)
        return [row for partitions in of_topics for row in partitions if row.assignment.is_being_reassigned]

    def rows(self, at_least: PartitionHealth = PartitionHealth.IN_SYNC) -> Iterable[PartitionRow]:
        return (
            row for t in self.topics.values() if t.worst >= at_least for row in t.partitions if row.health >= at_least
        )


def snapshot_of(
    tree: KafkaTree,
    *,
    zxid: int = 0,
    cluster_id: str = "",
    candidates: Collection[int] = (),
    min_isr: Mapping[str, int] | None = None,
    default_min_isr: int = DEFAULT_MIN_ISR,
    throttled_topics: Collection[str] = (),
    throttles: Mapping[int, int] | None = None,
) -> ClusterSnapshot:
    topics: dict[str, TopicRow] = {}
    unreadable: dict[str, str] = {}
    judge, tally = _Judge(tree), Tally()
    for name in sorted(tree.topics):
        try:
            assigned = topic.decode(topic.path(name), tree.topics[name].data)
        except ZNodeError as error:
            unreadable[name] = error.reason
            continue
        wanted = (min_isr or {}).get(name, default_min_isr)
        topics[name] = tally.topic(
            name,
            judge.verdicts(name, assigned.partitions, wanted),
            min_isr=wanted,
            is_being_deleted=name in tree.deletions,
            created_ms=tree.topics[name].stat.ctime_ms,
        )
    registered = _registered(tree)
    epoch = None if tree.controller_epoch is None else tree.controller_epoch.data
    return ClusterSnapshot(
        read_at_ms=tree.read_at_ms,
        zxid=zxid,
        cluster_id=cluster_id,
        controller=_controller(tree),
        controller_epoch=_number_or_none(epoch),
        controller_since_ms=None if tree.controller is None else tree.controller.stat.ctime_ms,
        brokers=tally.brokers(registered),
        topics=topics,
        unreadable=unreadable,
        candidates=tuple(candidates),
        deletions=tuple(_deletions(tree, topics, unreadable, registered)),
        throttled_topics=tuple(throttled_topics),
        throttles=throttles or {},
        health=tally.health(),
    )


class Verdict(NamedTuple):
    """What an assignment and a state say together: the same for every partition that has both."""

    assignment: Assignment
    state: LeaderAndIsr | None
    health: PartitionHealth

    @property
    def row(self) -> PartitionRow:
        """A partition that has this verdict, for what its name does not matter for."""
        return PartitionRow("", 0, *self)


def verdict_of(assignment: Assignment, state: LeaderAndIsr | None, min_isr: int) -> Verdict:
    return Verdict(assignment, state, _health(assignment, state, min_isr))


class Tally:
    """Counts verdicts instead of partitions, which makes a look at 100,000 of them cheap."""

    def __init__(self) -> None:
        self._all: Counter[Verdict] = Counter()
        """How many partitions of all topics have each verdict."""

    def topic(
        self,
        name: str,
        verdicts: Mapping[int, Verdict],
        *,
        min_isr: int,
        is_being_deleted: bool = False,
        created_ms: int | None = None,
    ) -> TopicRow:
        """The verdicts are those of its partitions, in their order."""
        counted = Counter(verdicts.values())
        self._all.update(counted)
        rows = [(verdict.row, times) for verdict, times in counted.items()]
        return TopicRow(
            name,
            tuple([PartitionRow(name, number, *verdict) for number, verdict in verdicts.items()]),
            worst=max((row.health for row, _ in rows), default=PartitionHealth.IN_SYNC),
            unhealthy=sum(times for row, times in rows if row.health >= PartitionHealth.UNDER_REPLICATED),
            moving=sum(times for row, times in rows if row.assignment.is_being_reassigned),
            not_preferred=sum(times for row, times in rows if not row.is_led_by_preferred),
            min_isr=min_isr,
            is_being_deleted=is_being_deleted,
            created_ms=created_ms,
        )

    def health(self) -> Counter[PartitionHealth]:
        found: Counter[PartitionHealth] = Counter()
        for verdict, times in self._all.items():
            found[verdict.health] += times
        return found

    def brokers(self, registered: Mapping[int, BrokerRow]) -> dict[int, BrokerRow]:
        """Those that are registered, and those that only assignments name."""
        leaders: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        lagging: Counter[int] = Counter()
        for verdict, times in self._all.items():
            row = verdict.row
            leaders[row.leader] += times
            for broker in row.assignment.replicas:
                replicas[broker] += times
            if row.health >= PartitionHealth.UNDER_REPLICATED:
                for missing in row.missing:
                    lagging[missing] += times
        ids = sorted({*registered, *replicas, *(leader for leader in leaders if leader >= 0)})
        unknown = BrokerRow(-1, False, (), None, None, False, 0, 0, 0)
        return {
            number: registered.get(number, unknown)._replace(
                id=number, leaders=leaders[number], replicas=replicas[number], lagging=lagging[number]
            )
            for number in ids
        }


class _Judge:
    """Judges the partitions of a tree, those with the same znodes once."""

    def __init__(self, tree: KafkaTree) -> None:
        self._states = tree.states
        self._known: dict[tuple[Assignment, bytes | None, int], Verdict] = {}

    def verdicts(self, name: str, assignments: Mapping[int, Assignment], min_isr: int) -> dict[int, Verdict]:
        states, known = self._states, self._known
        found: dict[int, Verdict] = {}
        for number in sorted(assignments):
            raw = states.get(TopicPartition(name, number))
            key = assignments[number], None if raw is None else raw.data, min_isr
            verdict = known.get(key)
            if verdict is None:
                verdict = known[key] = verdict_of(key[0], _state(key[1]), min_isr)
            found[number] = verdict
        return found


def _state(data: bytes | None) -> LeaderAndIsr | None:
    """A state that is absent or unreadable counts as none; the doctor names it."""
    try:
        return None if data is None else partition_state.decode("", data)
    except ZNodeError:
        return None


def _health(assignment: Assignment, state: LeaderAndIsr | None, min_isr: int) -> PartitionHealth:
    if state is None or state.leader < 0:
        return PartitionHealth.OFFLINE
    original = assignment.original_replicas
    if len(state.isr) < min(min_isr, len(original)):
        return PartitionHealth.UNDER_MIN_ISR
    if not set(original) <= set(state.isr):
        return PartitionHealth.UNDER_REPLICATED
    return PartitionHealth.MOVING if assignment.is_being_reassigned else PartitionHealth.IN_SYNC


def _registered(tree: KafkaTree) -> dict[int, BrokerRow]:
    found: dict[int, BrokerRow] = {}
    for name, node in tree.brokers.items():
        path = f"{broker_id.PARENT}/{name}"
        try:
            number = broker_id.id_of(path)
        except ZNodeError:
            continue
        try:
            decoded = broker_id.decode(path, node.data)
            known = tuple(map(str, decoded.endpoints)), decoded.rack, node.stat.ctime_ms, decoded.controller_only
        except ZNodeError as error:
            known = (f"unreadable registration: {error.reason}",), None, node.stat.ctime_ms, False
        found[number] = BrokerRow(number, True, *known, leaders=0, replicas=0, lagging=0)
    return found


def _deletions(
    tree: KafkaTree, topics: Mapping[str, TopicRow], unreadable: Mapping[str, str], registered: Collection[int]
) -> Iterable[MarkedTopic]:
    aside = _quarantined(tree)
    for name in sorted(tree.deletions):
        reason = (
            f"a repair of its znode: {unreadable[name]}"
            if name in unreadable
            else waits_for(
                {row.number: row.assignment for row in topics[name].partitions} if name in topics else None,
                frozenset(map(BrokerId, registered)),
                has_controller=tree.controller is not None,
                quarantined=topic.path(name) in aside,
            )
        )
        yield MarkedTopic(name, tree.deletions[name].stat.ctime_ms, reason)


def _quarantined(tree: KafkaTree) -> set[str]:
    found = set()
    for path, node in tree.quarantined.items():
        try:
            found.add(quarantine.decode(path, node.data).path)
        except ZNodeError:
            continue
    return found


def _controller(tree: KafkaTree) -> int | None:
    try:
        return None if tree.controller is None else controller.decode(controller.PATH, tree.controller.data)
    except ZNodeError:
        return None


def _number_or_none(data: bytes | None) -> int | None:
    try:
        return controller_epoch.decode(controller_epoch.PATH, data)
    except ZNodeError:
        return None
