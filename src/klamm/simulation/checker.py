"""Watches a run: records the events, keeps the facts that the invariants need, and checks them after every event.

The invariants themselves are pure functions (`invariants`, `healed`). A violation ends the run and carries the last
events before it. Equal runs have equal digests. `reached` counts rare paths through the code, so that a run does not
count as proof of something that it never did.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from klamm.model.errors import KlammError, ZNodeError
from klamm.model.events import Decision, EventRecord, StateChange
from klamm.model.ids import (
    EPOCH_DURING_DELETE,
    INITIAL_CONTROLLER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Clock
from klamm.simulation import invariants
from klamm.simulation.healed import Metadata, name_of_state
from klamm.simulation.invariants import Leadership, Problem, RequestEpochs
from klamm.wire.apis import ApiKey
from klamm.zookeeper.server.tree import TreeNode
from klamm.zookeeper.znodes import broker_id, delete_topics, partition_state
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import controller_epoch as epoch_znode
from klamm.zookeeper.znodes import topic as topic_znode

LAST_EVENTS: Final = 40
OPERATOR_SESSION: Final = 0
"""Session id of writes that bypass sessions (`tree_access`)."""
CONTROL_REQUESTS: Final = frozenset({ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA})


class Violation(KlammError):
    """An invariant does not hold, which is by definition a bug."""

    def __init__(self, invariant: str, about: str, seconds: float, events: Iterable[str] = ()) -> None:
        super().__init__(f"{invariant} at {seconds:.3f} s: {about}")
        self.invariant = invariant
        self.about = about
        self.seconds = seconds
        self.events = tuple(events)


class Checker:
    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, TreeNode],
        on_decision: Callable[[Decision], None] = lambda record: None,
    ) -> None:
        self._clock = clock
        self._nodes = nodes
        self.on_decision = on_decision
        self._digest = hashlib.sha256()
        self._last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.violation: BaseException | None = None
        self.events = 0
        self.ways: Counter[str] = Counter()
        self.controller_epoch: ControllerEpoch = INITIAL_CONTROLLER_EPOCH
        self._first_epoch: ControllerEpoch = INITIAL_CONTROLLER_EPOCH
        """The epoch with which the znode was created, and which is set again until its version has caught up."""
        self.elections = 0
        self._elected_session = OPERATOR_SESSION
        self._elected_at = 0
        self._broker_epochs: dict[BrokerId, BrokerEpoch] = {}
        self._registered_by: dict[BrokerId, int] = {}
        self._states: dict[TopicPartition, tuple[LeaderAndIsr, int]] = {}
        self._written: dict[TopicPartition, set[tuple[LeaderAndIsr, int]]] = {}
        self._assigned: dict[str, dict[int, Assignment]] = {}
        self._lives: dict[str, int] = {}
        self._acting: dict[Leadership, BrokerId] = {}
        self._played: dict[tuple[BrokerId, TopicPartition], LeaderEpoch] = {}
        """The leader epoch in which each real broker plays its role."""
        self._marked: set[str] = set()
        """Topics whose deletion was requested in their present life, even if the request is gone."""
        self.lost: set[TopicPartition] = set()
        """Partitions whose state an operator deleted: its epochs and versions start again."""
        self.led_again: set[TopicPartition] = set()
        """Partitions with two histories in one leader epoch, if their leader lost its end in between."""
        self.recovered: set[BrokerId] = set()
        """Brokers whose last end was not a clean stop."""
        self.protected: set[TopicPartition] = set()
        """Partitions whose state no controller could write for a while."""
        self.unclean_allowed: set[str] = set()
        """Topics for which the operator allowed an unclean election."""

    def version_of(self, name: TopicPartition) -> int:
        """The version of a state in ZooKeeper; -1 if there is none."""
        known = self._states.get(name)
        return -1 if known is None else known[1]

    # --- the record of a run ---

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def note(self, *words: Any) -> None:
        """Add one line to the trace."""
        line = f"{self._clock.monotonic():.6f} {' '.join(map(str, words))}"
        self.events += 1
        self._last.append(line)
        self._digest.update(line.encode())

    def reached(self, way: str) -> None:
        self.ways[way] += 1

    def require(self, invariant: str, wrong: Problem) -> None:
        if wrong is not None:
            raise self.violation_of(invariant, wrong)

    def violation_of(self, invariant: str, wrong: str) -> Violation:
        return Violation(invariant, wrong, self._clock.monotonic(), self._last)

    def fail(self, error: BaseException) -> None:
        """Keep an error for `raise_violation`. Raised here, it would only close a connection."""
        self.violation = self.violation or error

    def raise_violation(self) -> None:
        if self.violation is not None:
            raise self.violation

    def emit(self, records: Iterable[EventRecord]) -> None:
        """ports.EventSink of every controller. An exception that ended a term or quarantined a znode is a bug."""
        for record in records:
            if isinstance(record, StateChange):
                if record.role == "broker":
                    self._on_role(record)
            elif isinstance(record, Decision):
                self.note(record.broker, record.event, record.cause, record.detail)
                self.reached(record.event)
                self.on_decision(record)
                if record.event in ("controller-failed", "quarantined"):
                    about = f"controller {record.broker} failed on {record.cause}: {record.detail}"
                    self.fail(Violation("D14", about, self._clock.monotonic(), self._last))

    def _on_role(self, change: StateChange) -> None:
        """A real broker took a role, or gave it up."""
        name, broker = TopicPartition(change.topic, change.partition), change.broker
        try:
            if change.cause.startswith("stop-replica"):
                self._played.pop((broker, name), None)
                self.on_stop(broker, name, EPOCH_DURING_DELETE, None, delete=True)
            elif change.cause.startswith("leader-and-isr"):
                known = self._played.get((broker, name))
                self._played[broker, name] = change.leader_epoch
                self.require("S8", invariants.order_is_newer(broker, name, change.leader_epoch, known))
                if change.leader == broker:
                    self._led_again(name, broker, change.leader_epoch, known)
                    state = LeaderAndIsr(change.leader, change.leader_epoch, change.isr, change.controller_epoch)
                    self.on_order(broker, name, (state, change.zk_version), known)
        except Violation as error:
            self.fail(error)

    def _led_again(self, name: TopicPartition, broker: BrokerId, epoch: LeaderEpoch, known: int | None) -> None:
        """S12: a broker that may have lost the end of its log leads on in its old epoch. No controller saw that it was
        gone (KIP-966), and the next one did not ask. It cannot help it if the state may not be written, and it does not
        write the states of a topic that is being deleted."""
        leadership = Leadership(self._lives.get(name.topic, 0), name, epoch)
        if known is None and self._acting.get(leadership) == broker and broker in self.recovered:
            self.reached("led again in the same epoch")
            self.led_again.add(name)
            is_leaving = delete_topics.path(name.topic) in self._nodes
            if name not in self.protected and name not in self.lost and not is_leaving:
                self.require("S12", f"broker {broker} leads {name} in epoch {epoch}, as before it ended uncleanly")

    def starts(self, broker: BrokerId) -> None:
        """A process begins; it has no roles."""
        self.note("start", broker)
        for played in [played for played in self._played if played[0] == broker]:
            del self._played[played]

    # --- ZooKeeper took a write ---

    def on_write(self, kind: str, path: str, session: int) -> None:
        try:
            self._judge_write(kind, path, session)
        except Exception as error:
            self.fail(error)

    def _judge_write(self, kind: str, path: str, session: int) -> None:
        node = self._nodes.get(path)
        data = None if node is None else node.data
        self.note(kind, path, session, data)
        name = name_of_state(path)
        if name is not None and node is None and session == OPERATOR_SESSION:
            self._states.pop(name, None)
            self.lost.add(name)
        if name is not None and node is not None:
            self._on_state(name, node, kind, path, session)
        elif session != OPERATOR_SESSION:
            wrong = invariants.only_the_elected_writes(kind, path, session, self._elected_session)
            self.require("S7", wrong)
        if path == epoch_znode.PATH and node is not None:
            self._on_controller_epoch(node, kind, session)
        elif path.startswith(f"{broker_id.PARENT}/"):
            self._on_registration(path, node, kind, session)
        elif kind == "create" and path.startswith(f"{delete_topics.PARENT}/"):
            self._marked.add(path.rpartition("/")[2])
        elif path.startswith(f"{topic_znode.PARENT}/") and path.count("/") == 3:
            self._on_topic(path, node)

    def _on_controller_epoch(self, node: TreeNode, kind: str, session: int) -> None:
        try:
            epoch = epoch_znode.decode(epoch_znode.PATH, node.data)
        except ZNodeError:
            return  # the operator's junk
        if kind == "create":
            self._first_epoch = epoch
        if session == OPERATOR_SESSION or epoch == self._first_epoch:
            return  # created for the election that follows
        if node.mzxid == self._elected_at:
            return  # the version rises with the epoch in the same transaction
        self.require("S5", invariants.controller_epoch_rises(self.controller_epoch, epoch))
        owner = self._nodes.get(controller_znode.PATH)
        if owner is None or owner.owner != session:
            self.require("S7", f"controller epoch {epoch} was started by a session that does not own /controller")
        self.controller_epoch = epoch
        self._elected_session = session
        self._elected_at = node.mzxid
        self.elections += 1

    def _on_registration(self, path: str, node: TreeNode | None, kind: str, session: int) -> None:
        try:
            broker = broker_id.id_of(path)
        except ZNodeError:
            return
        if node is None and session not in (OPERATOR_SESSION, self._registered_by.get(broker)):
            self.reached("registration of a former session replaced")
        if kind == "create" and node is not None:
            epoch = BrokerEpoch(node.czxid)
            before = self._broker_epochs.get(broker)
            if before is not None:
                self.require("S5", invariants.broker_epoch_rises(broker, before, epoch))
            self._broker_epochs[broker] = epoch
            self._registered_by[broker] = node.owner

    def _on_topic(self, path: str, node: TreeNode | None) -> None:
        topic = path.rpartition("/")[2]
        if node is None:
            self._marked.discard(topic)
            self._assigned.pop(topic, None)
            self._lives.pop(topic, None)
            for name in [name for name in self._states if name.topic == topic]:
                del self._states[name]
            return
        self._lives[topic] = node.czxid
        try:
            self._assigned[topic] = topic_znode.decode(path, node.data).partitions
        except ZNodeError:
            pass  # the operator's junk: the assignment before it still applies

    def _on_state(self, name: TopicPartition, node: TreeNode, kind: str, path: str, session: int) -> None:
        try:
            after = partition_state.decode(path, node.data)
        except ZNodeError:
            return  # the operator's junk
        known = self._states.get(name)
        self._states[name] = (after, node.version)
        self._written.setdefault(name, set()).add((invariants.without_controller_epoch(after), node.version))
        if session == OPERATOR_SESSION:
            return
        assigned = self._assigned.get(name.topic, {}).get(name.partition)
        self.require("S6", invariants.state_is_sound(name, after, assigned))
        if known is not None:
            before, version = known
            if name in self.lost:
                return  # as in Kafka, a leader that knows its version may overwrite it
            self.require("S5", invariants.leader_epoch_rises(name, before, after))
            self.require("S5", invariants.zk_version_rises(name, version, node.version))
            if after.leader_epoch == before.leader_epoch:
                return  # the leader's own ISR write
            unclean = name.topic in self.unclean_allowed
            self.require("S6", invariants.leader_comes_from_isr(name, before, after, unclean_allowed=unclean))
        self.require("S7", invariants.only_the_elected_writes(kind, path, session, self._elected_session))
        self.require("S7", invariants.state_of_the_elected(name, after, self.controller_epoch))

    # --- a host sent a request, or a broker obeyed one ---

    def on_sent(self, host: str, frame: bytes, own_epoch: ControllerEpoch | None, unheard: float) -> None:
        """`unheard`: for how long ZooKeeper has received nothing from this host."""
        epoch = controller_epoch_of(frame)
        if epoch is not None:
            try:
                self.require("S15", invariants.sender_is_active(host, epoch, own_epoch))
                self.require("lease", invariants.sender_was_heard(host, unheard))
            except Violation as error:
                self.fail(error)

    def on_obeyed(self, broker: BrokerId, api_key: ApiKey, request: RequestEpochs, known: RequestEpochs) -> None:
        self.note(broker, "obeys", api_key.name, *request)
        self.require("S8", invariants.request_is_current(broker, request, known))

    def on_order(
        self, broker: BrokerId, name: TopicPartition, told: tuple[LeaderAndIsr, int], known: int | None
    ) -> None:
        state = told[0]
        self.note(broker, "follows order", name, state)
        self.require("S8", invariants.order_is_newer(broker, name, state.leader_epoch, known))
        self.require("order", invariants.sent_state_was_written(broker, name, told, self._written.get(name, ())))
        if state.leader == broker:
            leadership = Leadership(self._lives.get(name.topic, 0), name, state.leader_epoch)
            self.require("S4", invariants.one_leader(self._acting, leadership, broker))
            self._acting[leadership] = broker

    def on_stop(self, broker: BrokerId, name: TopicPartition, epoch: int, known: int | None, *, delete: bool) -> None:
        self.note(broker, "deletes" if delete else "stops", name, epoch)
        self.require("S8", invariants.stop_is_current(broker, name, epoch, known))
        if delete:
            state = self._states.get(name)
            leaves = name.topic not in self._lives or name.topic in self._marked
            isr = () if state is None else state[0].isr
            wrong = invariants.deleted_is_not_needed(broker, name, isr, topic_leaves=leaves)
            self.require("S8", wrong)

    # --- between events ---

    def on_controller(self, broker: BrokerId, *, is_active: bool, gauges: Callable[[], Mapping[str, float]]) -> None:
        if not is_active:
            self.require("S15", invariants.resigned_is_empty(broker, is_active=is_active, gauges=gauges()))

    def on_rest(
        self,
        broker: BrokerId,
        decided: Mapping[TopicPartition, LeaderAndIsr],
        metadata: Metadata,
        leads: Mapping[TopicPartition, LeaderEpoch],
        alive: Collection[BrokerId],
    ) -> None:
        """The controller has nothing to do, and no request to this broker is pending."""
        told = {name: known[0] for name, known in metadata.partitions.items()}
        self.require("E1", invariants.knows_decisions(broker, decided, told, leads, alive))


def controller_epoch_of(frame: bytes) -> ControllerEpoch | None:
    """The controller epoch of a control request: after the size, a flexible header and the controller id."""
    if len(frame) < 14 or int.from_bytes(frame[4:6], "big") not in CONTROL_REQUESTS:
        return None
    start = 14 + max(int.from_bytes(frame[12:14], "big", signed=True), 0) + 1
    return ControllerEpoch(int.from_bytes(frame[start + 4 : start + 8], "big"))
