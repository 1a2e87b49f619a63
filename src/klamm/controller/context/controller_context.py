"""What the controller knows, in columns (design D13): a partition is an int, and has a name only at the border.

A cluster of 100,000 partitions has a few hundred distinct states and assignments, so those are interned tuples in
lists; partition states are one bytearray, replica states one per broker (`replicas`). Only the consumer of the event
queue changes a context, and only after ZooKeeper accepted the change. Counters and indexes are updated with each
change: neither the context nor the handling of an event scans all partitions.

A partition's index is valid within one event: the indexes of a deleted topic are used again, so anything that outlives
the event holds names.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from klamm.controller.context.replica_states import Replicas
from klamm.controller.context.states import PARTITION_MAY_ENTER, REPLICA_MAY_ENTER, PartitionState, ReplicaState, legal
from klamm.controller.context.states import PartitionIndex as PartitionIndex
from klamm.model.brokers import LiveBroker
from klamm.model.ids import NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr

INTERNED_MAX = 200_000

_NONE = Assignment(())
_LABELS = [state.label for state in PartitionState]


class Counts(NamedTuple):
    """The gauges of the active controller. All have Kafka's names except `suspects`, which Kafka does not have."""

    topics: int = 0
    partitions: int = 0
    offline_partitions: int = 0
    preferred_replica_imbalance: int = 0
    topics_to_delete: int = 0
    replicas_to_delete: int = 0
    topics_ineligible_to_delete: int = 0
    replicas_ineligible_to_delete: int = 0
    suspects: int = 0


class Columns(NamedTuple):
    """The columns themselves, for loops over tens of thousands of partitions, where one call per partition and column
    would cost more than the work. Read only, and only within one event."""

    topic: Sequence[str]
    number: Sequence[int]
    state: Sequence[LeaderAndIsr | None]
    zk_version: Sequence[int]
    assigned: Sequence[Assignment]


class ControllerContext:
    def __init__(self, controller_epoch: ControllerEpoch) -> None:
        self.controller_epoch: Final = controller_epoch
        self.brokers: dict[BrokerId, LiveBroker] = {}
        """Registered brokers. Those that are shutting down are included, since they still receive requests."""
        self.shutting_down: set[BrokerId] = set()
        self.suspects: set[BrokerId] = set()
        """Registered brokers that are probably dead (see `suspicion`). Every decision treats them as dead.
        """
        self.offline_dirs: dict[BrokerId, set[PartitionIndex]] = {}
        """Replicas that their broker reported as being on a failed log directory."""
        self.deleting: set[str] = set()
        """Topics queued for deletion: no elections, no balancing, no reassignment."""
        self.unreadable: set[PartitionIndex] = set()
        """Partitions whose state znode exists but could not be read: they have an ISR, but no state here."""
        self.held: set[str] = set()
        """Topics in `deleting` in which a new controller found a dead replica. Their brokers are not asked again to
        delete replicas until a broker that holds one starts."""

        self.unheard: dict[str, set[BrokerId]] = {}
        """Brokers that have not confirmed yet that they dropped a topic in `deleting`. Its znodes stay until they have:
        if this controller dies, only those tell the next one that there is something to drop."""

        self.reassigning: set[PartitionIndex] = set()
        """Partitions whose assignment adds or removes replicas."""

        self.unwritten: set[PartitionIndex] = set()
        """Partitions whose reassignment is complete, but whose topic znode could not be written."""

        self._topics: dict[str, dict[int, PartitionIndex]] = {}
        self.topic_ids: dict[str, str] = {}
        """The `topic_id` of znodes that have one; it is written back as found (KAFKA-12835)."""
        self._topic: list[str] = []
        self._number: array[int] = array("i")
        self._state: list[LeaderAndIsr | None] = []
        self._zk_version: array[int] = array("i")
        self._assigned: list[Assignment] = []
        self._partition_state = bytearray()
        self.replicas: Final = Replicas()
        self._free: list[PartitionIndex] = []
        self._leaderless: set[PartitionIndex] = set()
        self._states: dict[LeaderAndIsr, LeaderAndIsr] = {}
        self._assignments: dict[Assignment, Assignment] = {}

        self._partitions_with_state = 0
        self._offline = 0
        self._imbalanced = 0
        self._counted: tuple[object, tuple[int, int, int]] | None = None
        self.columns: Final = Columns(self._topic, self._number, self._state, self._zk_version, self._assigned)

    # --- brokers ---

    @property
    def live(self) -> frozenset[BrokerId]:
        """Brokers that may lead: registered, not shutting down, not suspect. Call it once per decision."""
        return frozenset(self.brokers.keys() - self.shutting_down - self.suspects)

    def is_live(self, broker: BrokerId) -> bool:
        return broker in self.brokers and broker not in self.shutting_down and broker not in self.suspects

    def is_replica_online(self, broker: BrokerId, partition: PartitionIndex) -> bool:
        return self.is_live(broker) and partition not in self.offline_dirs.get(broker, ())

    def live_for(self, partition: PartitionIndex, live: frozenset[BrokerId]) -> frozenset[BrokerId]:
        """`live` without brokers whose replica of this partition is on a failed log directory."""
        if not self.offline_dirs:
            return live
        return frozenset(broker for broker in live if partition not in self.offline_dirs.get(broker, ()))

    # --- topics and partitions: names at the border ---

    @property
    def topics(self) -> Mapping[str, Mapping[int, PartitionIndex]]:
        return self._topics

    def partition(self, topic: str, number: int) -> PartitionIndex | None:
        return self._topics.get(topic, {}).get(number)

    def partitions_of(self, topic: str) -> list[PartitionIndex]:
        return list(self._topics.get(topic, {}).values())

    def all_partitions(self) -> Iterator[PartitionIndex]:
        """Grouped by topic. For fail-over, and for a new broker that must receive all metadata."""
        for numbers in self._topics.values():
            yield from numbers.values()

    def topic_of(self, partition: PartitionIndex) -> str:
        return self._topic[partition]

    def number_of(self, partition: PartitionIndex) -> int:
        return self._number[partition]

    def name_of(self, partition: PartitionIndex) -> TopicPartition:
        return TopicPartition(self._topic[partition], self._number[partition])

    # --- columns ---

    def state_of(self, partition: PartitionIndex) -> LeaderAndIsr | None:
        """None before the partition has its first leader."""
        return self._state[partition]

    def leader_of(self, partition: PartitionIndex) -> BrokerId:
        state = self._state[partition]
        return NO_LEADER if state is None else state.leader

    def zk_version_of(self, partition: PartitionIndex) -> int:
        return self._zk_version[partition]

    def assignment_of(self, partition: PartitionIndex) -> Assignment:
        return self._assigned[partition]

    def partition_state_of(self, partition: PartitionIndex) -> PartitionState:
        return PartitionState(self._partition_state[partition])

    def partition_labels_of(self, partitions: Iterable[PartitionIndex]) -> list[str]:
        """For state-change records; one decision may make 60,000 of them."""
        return list(map(_LABELS.__getitem__, map(self._partition_state.__getitem__, partitions)))

    def shared_by(self, broker: BrokerId) -> tuple[list[PartitionIndex], list[PartitionIndex]]:
        """Partitions that `broker` leads, and those that it follows. Not those on no other broker or being deleted."""
        led: list[PartitionIndex] = []
        followed: list[PartitionIndex] = []
        states, assigned, topics, deleting = self._state, self._assigned, self._topic, self.deleting
        for i in self.replicas.on(broker):
            state = states[i]
            if state is None or len(assigned[i].replicas) == 1 or (deleting and topics[i] in deleting):
                continue
            (led if state.leader == broker else followed).append(i)
        return led, followed

    def known_to(self, broker: BrokerId, partitions: Iterable[PartitionIndex]) -> list[PartitionIndex]:
        """Partitions to send in LeaderAndIsr when their replicas on `broker` become OnlineReplica: those with known
        leadership that are not New, since a New replica has already received it."""
        column, states = self.replicas.states_on(broker), self._state
        known = REPLICA_MAY_ENTER[ReplicaState.ONLINE] - {ReplicaState.NEW}
        return [i for i in partitions if column[i] in known and states[i] is not None]

    def replicas_in(self, topic: str, *wanted: ReplicaState) -> dict[BrokerId, list[PartitionIndex]]:
        """Replicas of a topic that are in one of these states, by broker."""
        found: dict[BrokerId, list[PartitionIndex]] = {}
        for partition in self._topics.get(topic, {}).values():
            for broker in self._assigned[partition].replicas:
                if self.replicas.state_of(partition, broker) in wanted:
                    found.setdefault(broker, []).append(partition)
        return dict(sorted(found.items()))

    def replica_columns(self, topic: str) -> dict[BrokerId, bytes]:
        """The states of a topic's replicas, by broker, one byte per partition. A thousand topics may wait for a dead
        broker, and each trigger looks at all of them: one call per replica would hold the loop."""
        return self.replicas.columns_of(self._brokers_of(topic), self._topics.get(topic, {}).values())

    def partition_column(self, topic: str) -> bytes:
        return bytes(map(self._partition_state.__getitem__, self._topics.get(topic, {}).values()))

    def _brokers_of(self, topic: str) -> list[BrokerId]:
        """Brokers that hold a replica. Partitions share assignment objects, so few are looked at."""
        assigned = list(map(self._assigned.__getitem__, self._topics.get(topic, {}).values()))
        different = dict(zip(map(id, assigned), assigned, strict=True)).values()
        return sorted({broker for assignment in different for broker in assignment.replicas})

    def leaderless(self) -> list[PartitionIndex]:
        """New and Offline partitions that are not being deleted: the next trigger tries to elect their leaders."""
        if not self.deleting:
            return sorted(self._leaderless)
        return sorted(i for i in self._leaderless if not self.is_leaving(i))

    def peculiar(self) -> set[PartitionIndex]:
        """Partitions for which more than state and assignment matters: a replica is on a failed log directory, or the
        topic is queued for deletion. Usually there are none."""
        found = set[PartitionIndex]().union(*self.offline_dirs.values())
        return found.union(*(self._topics.get(topic, {}).values() for topic in self.deleting))

    def split_by_state(
        self, partitions: Sequence[PartitionIndex], state: PartitionState
    ) -> tuple[list[PartitionIndex], list[PartitionIndex]]:
        """Partitions in `state`, and the others."""
        column, value = self._partition_state, int(state)
        return [i for i in partitions if column[i] == value], [i for i in partitions if column[i] != value]

    def is_leaving(self, partition: PartitionIndex) -> bool:
        """Its topic is queued for deletion: no elections, no ISR changes. A partition that is being reassigned is not
        leaving: its reassignment must complete first and needs a leader, else the two would wait for each other for
        ever.
        """
        return self._topic[partition] in self.deleting and partition not in self.reassigning

    # --- changes, made after ZooKeeper accepted them ---

    def add_topic(self, topic: str, topic_id: str | None = None) -> None:
        self._topics.setdefault(topic, {})
        if topic_id is not None:
            self.topic_ids[topic] = topic_id

    def add_partitions(self, topic: str, assignments: Mapping[int, Assignment]) -> list[PartitionIndex]:
        """Add partitions in state NonExistent, without leader. Returns their indexes in order of their numbers."""
        return self.add_all({topic: assignments})

    def add_all(self, topics: Mapping[str, Mapping[int, Assignment]]) -> list[PartitionIndex]:
        """The same for many topics at once, whose partitions share assignments."""
        added: list[PartitionIndex] = []
        assigned: list[Assignment] = []
        for topic, assignments in topics.items():
            known, numbers = self._topics.setdefault(topic, {}), sorted(assignments)
            assert known.keys().isdisjoint(numbers), f"{topic}: one of {numbers[:5]}... is already known"
            indexes = self._take_indexes(topic, numbers)
            known.update(zip(numbers, indexes, strict=True))
            added += indexes
            assigned += map(assignments.__getitem__, numbers)
        self._assign(added, assigned)
        return added

    def replace_assignment(self, partition: PartitionIndex, assignment: Assignment) -> None:
        self._imbalanced -= self._counts_as_imbalanced(partition)
        former = self._assigned[partition].replicas
        self.replicas.unassign(partition, [broker for broker in former if broker not in assignment.replicas])
        self.reassigning.discard(partition)
        self._assign((partition,), (assignment,))
        self._imbalanced += self._counts_as_imbalanced(partition)

    def remove_topic(self, topic: str) -> None:
        self.stop_deleting(topic)
        for partition in self._topics.pop(topic, {}).values():
            self._forget(partition)
        self.topic_ids.pop(topic, None)

    def put_state(self, partition: PartitionIndex, state: LeaderAndIsr, zk_version: int) -> None:
        self.put_states((partition,), (state,), (zk_version,))

    def put_states(
        self, partitions: Sequence[PartitionIndex], states: Sequence[LeaderAndIsr], zk_versions: Sequence[int]
    ) -> None:
        """No partition may occur twice. Partitions that share a state object cost one interning."""
        if len(self._states) > INTERNED_MAX:
            self._states.clear()  # a long term has many epochs; states still in use are interned again
        if self.unreadable:
            self.unreadable.difference_update(partitions)
        column, versions = self._state, self._zk_version
        known = [i for i in partitions if column[i] is not None]
        self._imbalanced -= self._imbalanced_among(known)
        self._partitions_with_state += len(partitions) - len(known)
        interned = {key: self._states.setdefault(s, s) for key, s in {id(s): s for s in states}.items()}
        for partition, state, zk_version in zip(partitions, states, zk_versions, strict=True):
            column[partition] = interned[id(state)]
            versions[partition] = zk_version
        self._imbalanced += self._imbalanced_among(partitions)

    def move_partitions(self, partitions: Sequence[PartitionIndex], to: PartitionState) -> list[PartitionIndex]:
        """Returns the partitions whose transition the table refuses; they stay in their state."""
        legal, refused = self.may_move_partitions(partitions, to)
        column, value = self._partition_state, int(to)
        self._offline -= self._offline_among(legal)
        for partition in legal:
            column[partition] = value
        if to is PartitionState.OFFLINE:
            self._offline += self._offline_among(legal)
        if to in (PartitionState.NEW, PartitionState.OFFLINE):
            self._leaderless.update(legal)
        else:
            self._leaderless.difference_update(legal)
        return refused

    def may_move_partitions(
        self, partitions: Sequence[PartitionIndex], to: PartitionState
    ) -> tuple[Sequence[PartitionIndex], list[PartitionIndex]]:
        return legal(partitions, self._partition_state, PARTITION_MAY_ENTER[to])

    def load_states(self, partitions: Sequence[PartitionIndex], live: frozenset[BrokerId]) -> None:
        """Set the first states after a load. The table of transitions does not apply, because nothing moved."""
        new, online, offline = int(PartitionState.NEW), int(PartitionState.ONLINE), int(PartitionState.OFFLINE)
        column, states, leaderless = self._partition_state, self._state, self._leaderless
        for partition in partitions:
            state = states[partition]
            if state is not None and state.leader in live:
                column[partition] = online
            else:
                column[partition] = new if state is None else offline
                self._offline += state is not None
                leaderless.add(partition)

    def start_deleting(self, topic: str) -> None:
        if topic in self.deleting:
            return
        # Subtracted once, here: while the topic is queued, its changes are not counted (KAFKA-13572).
        partitions = self._topics[topic].values()
        self._imbalanced -= sum(self._counts_as_imbalanced(i) for i in partitions)
        self._offline -= self._offline_among(partitions)
        self.deleting.add(topic)

    def stop_deleting(self, topic: str) -> None:
        if topic not in self.deleting:
            return
        self.deleting.discard(topic)
        self.held.discard(topic)
        self.unheard.pop(topic, None)
        partitions = self._topics.get(topic, {}).values()
        self._imbalanced += sum(self._counts_as_imbalanced(i) for i in partitions)
        self._offline += self._offline_among(partitions)

    def expect_heard(self, topics: Iterable[str], brokers: Iterable[BrokerId]) -> None:
        """These brokers are sent that the topics are being deleted."""
        told = set(brokers)
        for topic in topics:
            self.unheard.setdefault(topic, set()).update(told)

    def heard(self, broker: BrokerId, topics: Iterable[str]) -> None:
        """The broker confirmed it, or will never do so."""
        for topic in topics:
            if waiting := self.unheard.get(topic):
                waiting.discard(broker)

    def hold_deletions(self) -> None:
        """Called at fail-over: topics with a dead replica wait until a broker that holds one starts."""
        self.held.update(topic for topic in self.deleting if self.dead_in(topic))

    def release_deletions(self, started: Iterable[BrokerId]) -> None:
        held = {i for broker in started for i in self.replicas.on(broker)} if self.held else ()
        self.held.difference_update([self._topic[i] for i in held])

    def dead_in(self, topic: str) -> list[BrokerId]:
        """Dead brokers that hold a replica of the topic."""
        return [broker for broker in self._brokers_of(topic) if not self.is_live(broker)]

    def mark_offline_dirs(self, broker: BrokerId, partitions: Iterable[PartitionIndex]) -> None:
        self.offline_dirs.setdefault(broker, set()).update(partitions)

    def clear(self) -> None:
        """Free the memory at once, at the end of a term. The garbage collector ignores what a term has loaded
        (`gc.freeze`), so parts of a term that refer to each other would stay alive."""
        for part in vars(self).values():
            if isinstance(part, dict | set | list | bytearray):
                part.clear()
            elif isinstance(part, array):
                del part[:]
        self.replicas.clear()
        self._partitions_with_state = self._offline = self._imbalanced = 0

    def counts(self) -> Counts:
        replicas_to_delete, topics_ineligible, replicas_ineligible = self._deletion_counts()
        return Counts(
            len(self._topics),
            self._partitions_with_state,
            self._offline,
            self._imbalanced,
            len(self.deleting),
            replicas_to_delete,
            topics_ineligible,
            replicas_ineligible,
            len(self.suspects),
        )

    def _deletion_counts(self) -> tuple[int, int, int]:
        """Only topics being deleted are scanned, and only after a change: a scrape reads every gauge."""
        at = (self.replicas.changes, frozenset(self.deleting), frozenset(self.held))
        if self._counted is not None and self._counted[0] == at:
            return self._counted[1]
        to_delete = topics_stuck = replicas_stuck = 0
        for topic in self.deleting:
            columns = self.replica_columns(topic).values()
            stuck = sum(column.count(ReplicaState.DELETION_INELIGIBLE) for column in columns)
            to_delete += sum(len(column) - column.count(ReplicaState.NON_EXISTENT) for column in columns)
            replicas_stuck += stuck
            topics_stuck += stuck > 0 or topic in self.held
        self._counted = (at, (to_delete, topics_stuck, replicas_stuck))
        return self._counted[1]

    def sizes(self) -> dict[str, int]:
        """Counts for the record of a decision."""
        return {"brokers": len(self.brokers), "topics": len(self._topics), "partitions": self._partitions_with_state}

    # --- internals ---

    def _offline_among(self, partitions: Iterable[PartitionIndex]) -> int:
        """Topics queued for deletion do not count: no client misses them."""
        if self.deleting:
            partitions = [i for i in partitions if self._topic[i] not in self.deleting]
        return list(map(self._partition_state.__getitem__, partitions)).count(PartitionState.OFFLINE)

    def _counts_as_imbalanced(self, partition: PartitionIndex) -> bool:
        state = self._state[partition]
        if state is None or self._topic[partition] in self.deleting:
            return False
        assignment = self._assigned[partition]
        preferred = assignment.replicas[0] if assignment.replicas else NO_LEADER
        if preferred in assignment.adding and preferred not in state.isr:
            return False  # it cannot lead yet
        return state.leader != preferred

    def _imbalanced_among(self, partitions: Sequence[PartitionIndex]) -> int:
        if self.deleting or self.reassigning:
            return sum(map(self._counts_as_imbalanced, partitions))
        states, assigned, imbalanced = self._state, self._assigned, 0
        for partition in partitions:
            state, replicas = states[partition], assigned[partition].replicas
            if state is not None and state.leader != (replicas[0] if replicas else NO_LEADER):
                imbalanced += 1
        return imbalanced

    def _take_indexes(self, topic: str, numbers: Sequence[int]) -> list[PartitionIndex]:
        """Takes free indexes first; for the rest, every column grows once."""
        free = self._free
        taken = [free.pop() for _ in range(min(len(free), len(numbers)))]
        for partition, number in zip(taken, numbers, strict=False):
            self._topic[partition] = topic
            self._number[partition] = number
        first, unnamed = len(self._topic), numbers[len(taken) :]
        count = len(unnamed)
        self._topic += [topic] * count
        self._number.extend(unnamed)
        self._state += [None] * count
        self._zk_version.extend([-1] * count)
        self._assigned += [_NONE] * count
        self._partition_state += bytes((PartitionState.NON_EXISTENT,)) * count
        self.replicas.grow(count)
        taken += range(first, first + count)
        return taken

    def _assign(self, partitions: Sequence[PartitionIndex], assignments: Sequence[Assignment]) -> None:
        """Partitions that share an assignment object are indexed together, and the object is interned once."""
        column, alike = self._assigned, dict[int, list[PartitionIndex]]()
        for partition, assignment in zip(partitions, assignments, strict=True):
            column[partition] = assignment
            group = alike.get(id(assignment))
            if group is None:
                alike[id(assignment)] = [partition]
            else:
                group.append(partition)
        for group in alike.values():
            assignment = column[group[0]]
            interned = self._assignments.setdefault(assignment, assignment)
            if interned is not assignment:
                for partition in group:
                    column[partition] = interned
            self.replicas.assign(group, interned.replicas)
            if interned.adding or interned.removing:
                self.reassigning.update(group)

    def _forget(self, partition: PartitionIndex) -> None:
        if self._state[partition] is not None:
            self._partitions_with_state -= 1
            self._imbalanced -= self._counts_as_imbalanced(partition)
        self._offline -= self._offline_among((partition,))
        self._leaderless.discard(partition)
        self.reassigning.discard(partition)
        self.unreadable.discard(partition)
        self.unwritten.discard(partition)
        self.replicas.unassign(partition, self._assigned[partition].replicas)
        self.replicas.forget(partition)
        for offline in self.offline_dirs.values():
            offline.discard(partition)
        self._partition_state[partition] = PartitionState.NON_EXISTENT
        self._state[partition] = None
        self._assigned[partition] = _NONE
        self._topic[partition] = ""
        self._free.append(partition)
