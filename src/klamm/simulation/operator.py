"""The operator makes every kind of request, through znodes and calls, and makes mistakes.

Bad data that only a person can repair is repaired at the end, or earlier; until then the controllers must cope with it.
The scenario chooses what happens and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.elections import UncleanElection
from klamm.model.errors import KafkaError, ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.simulation.healed import name_of_state
from klamm.zookeeper.znodes import (
    broker_id,
    candidates,
    config,
    config_change,
    delete_topics,
    isr_change,
    log_dir_event,
    partition_state,
    preferred_replica_election,
    reassign_partitions,
)
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import controller_epoch as epoch_znode
from klamm.zookeeper.znodes import topic as topic_znode

if TYPE_CHECKING:
    from klamm.simulation.cluster import SimulatedCluster

JUNK: Final = (
    b"",
    b"not json",
    b"[]",
    b"null",
    b"\xff\xfe{",
    b'{"version":1}',
    b'{"version":"one","partitions":7}',
    b'{"version":2,"partitions":{"x":[1]}}',
    b'{"version":1,"partitions":[{"topic":"t"}]}',
    b'{"leader":"1","leader_epoch":[],"isr":{},"controller_epoch":null,"brokerid":"x"}',
)
PARTITIONS_MAX: Final = 8
UNKNOWN_BROKER: Final = BrokerId(99)
MENDED_AFTER_SECONDS: Final = (1.0, 12.0)
FORBIDDEN_AFTER_SECONDS: Final = 20.0


class Operator:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._random = cluster.random
        self._tree = cluster.tree
        self._mends: list[Callable[[], None]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._created = 0
        self._epoch_lost = False
        self._forbidden: dict[str, object] = {}
        self.edited_states: set[TopicPartition] = set()
        self.removed_by_hand: set[str] = set()
        """Topics whose names are not used again: without topic ids, a new topic looks like the old one."""

    def actions(self) -> dict[str, Callable[[], None]]:
        data = self._cluster.data
        with_records = {} if data is None else {"create with records": data.create_topic}
        return {
            **with_records,
            "create": self.create,
            "create again": self.create_again,
            "delete": self.delete,
            "delete unknown": self.delete_unknown,
            "remove topic znode": self.remove_topic_znode,
            "grow": self.grow,
            "reassign by znode": self.reassign_by_znode,
            "reassign": self.reassign,
            "reassign again": self.reassign_again,
            "cancel": self.cancel,
            "list reassignments": self.list_reassignments,
            "elect preferred by znode": self.elect_preferred_by_znode,
            "elect preferred": self.elect_preferred,
            "elect unclean": self.elect_unclean,
            "allow unclean": self.allow_unclean,
            "forbid unclean": self.forbid_unclean,
            "move controller": self.move_controller,
            "junk topic": self.junk_topic,
            "junk new topic": self.junk_new_topic,
            "junk state": self.junk_state,
            "junk reassignment": lambda: self._junk_at(reassign_partitions.PATH),
            "junk preferred election": lambda: self._junk_at(preferred_replica_election.PATH),
            "junk registration": self.junk_registration,
            "host that does not resolve": self.unresolvable_host,
            "lose state": self.lose_state,
            "protect state": self.protect_state,
            "protect topic": self.protect_topic,
            "notification with a child": self.notification_with_a_child,
            "remove a watched parent": self.remove_watched_parent,
            "junk broker": lambda: self._junk_at(f"{broker_id.PARENT}/x{self._random.randint(0, 9)}"),
            "junk candidate": lambda: self._junk_at(f"{candidates.PARENT}/x{self._random.randint(0, 9)}"),
            "junk notifications": self.junk_notifications,
            "junk controller": self.junk_controller,
            "junk controller epoch": self.junk_epoch,
            "delete controller epoch": self.delete_epoch,
            "prefer a controller": self.prefer_controller,
            "prefer no controller": self.prefer_no_controller,
        }

    # --- topics ---

    def create(self) -> None:
        self._put_topic(f"topic-{self._created}")
        self._created += 1

    def create_again(self) -> None:
        """Create a topic with the name of a deleted one, if there is any."""
        names = [name for i in range(self._created) if (name := f"topic-{i}") not in self.removed_by_hand]
        gone = [name for name in names if topic_znode.path(name) not in self._tree.nodes]
        if gone:
            self._put_topic(self._random.choice(gone))

    def _put_topic(self, name: str) -> None:
        count = self._random.randint(1, self._cluster.scenario.partitions)
        document = topic_znode.encode({n: Assignment(self._some_brokers()) for n in range(count)})
        self._tree.put(topic_znode.path(name), document)

    def delete(self) -> None:
        if topic := self._some_topic():
            self._tree.put(delete_topics.path(topic), None)

    def delete_unknown(self) -> None:
        self._tree.put(delete_topics.path("nobody-knows"), None)

    def remove_topic_znode(self) -> None:
        """Remove a topic without asking the controller, which must then drop it."""
        if (topic := self._some_topic()) and self._epoch_is_known():
            self.removed_by_hand.add(topic)
            self._tree.remove(topic_znode.path(topic))

    def grow(self) -> None:
        topic = self._some_topic()
        found = self._partitions(topic) if topic else {}
        if topic and 0 < len(found) < PARTITIONS_MAX:
            added = {len(found) + i: Assignment(self._some_brokers()) for i in range(self._random.randint(1, 2))}
            self._tree.put(topic_znode.path(topic), topic_znode.encode({**found, **added}))

    # --- reassignments ---

    def reassign_by_znode(self) -> None:
        """Like Kafka's old tool, make no request while another one is there. Sometimes name an unknown partition."""
        if reassign_partitions.PATH in self._tree.nodes:
            return
        targets = self._targets()
        if self._random.random() < 0.2:
            targets[TopicPartition("nobody-knows", 0)] = (BrokerId(1),)
        if self._random.random() < 0.1:
            targets[TopicPartition(self._some_topic() or "x", 0)] = (UNKNOWN_BROKER, BrokerId(1))
            self._mends.append(self._forget_unknown_brokers)
        if targets:
            self._tree.put(reassign_partitions.PATH, reassign_partitions.encode(targets))

    def _forget_unknown_brokers(self) -> None:
        """A request that names a broker that does not exist waits for ever."""
        path = reassign_partitions.PATH
        try:
            entries = reassign_partitions.decode(path, self._tree.read(path))
        except ZNodeError:
            return
        if any(UNKNOWN_BROKER in target for target in entries.values()):
            self._tree.remove(path)

    def reassign(self) -> None:
        targets = self._targets()
        self._call("reassign", lambda controller: controller.alter_partition_reassignments(targets))

    def reassign_again(self) -> None:
        """Override the running reassignments."""
        targets = {name: self._some_brokers() for name in self._moving()}
        self._call("override", lambda controller: controller.alter_partition_reassignments(targets))

    def cancel(self) -> None:
        targets = dict.fromkeys(self._moving() or self._targets())
        self._call("cancel", lambda controller: controller.alter_partition_reassignments(targets))

    def list_reassignments(self) -> None:
        self._call("list", lambda controller: controller.list_partition_reassignments(None))

    def rotate_leaders(self) -> None:
        """Another replica becomes the preferred one, and is elected at once."""
        names = self._movable_partitions()
        found = {name: self._partitions(name.topic).get(name.partition) for name in names}
        targets = {
            name: (*assignment.replicas[1:], assignment.replicas[0])
            for name, assignment in found.items()
            if assignment is not None and not assignment.is_being_reassigned
        }

        async def rotate(controller: Controller) -> None:
            await controller.alter_partition_reassignments(targets)
            await controller.elect_leaders(list(targets), UncleanElection.FORBIDDEN)

        self._call("rotate", rotate)

    # --- elections ---

    def elect_preferred_by_znode(self) -> None:
        if preferred_replica_election.PATH not in self._tree.nodes:
            document = preferred_replica_election.encode(
                [*self._movable_partitions(), TopicPartition("nobody-knows", 3)]
            )
            self._tree.put(preferred_replica_election.PATH, document)

    def elect_preferred(self) -> None:
        names = None if self._random.random() < 0.3 else self._movable_partitions()
        self._call("elect preferred", lambda controller: controller.elect_leaders(names, UncleanElection.FORBIDDEN))

    def elect_unclean(self) -> None:
        names = self._some_partitions()
        for name in names:
            self._forbidden.pop(name.topic, None)
            self._cluster.checker.unclean_allowed.add(name.topic)
        self._call("elect unclean", lambda controller: controller.elect_leaders(names, UncleanElection.ALLOWED))

    def allow_unclean(self) -> None:
        if topic := self._some_topic():
            self._forbidden.pop(topic, None)
            self._cluster.checker.unclean_allowed.add(topic)
            self._tree.put(config.topic_path(topic), config.encode({"unclean.leader.election.enable": "true"}))
            self._tree.put_sequential(config_change.PREFIX, config_change.encode(f"topics/{topic}"))

    def forbid_unclean(self) -> None:
        """A decision that has just read the permission may still use it, but none that comes much later."""
        allowed = self._cluster.checker.unclean_allowed
        topics = [t for t in sorted(allowed) if topic_znode.path(t) in self._tree.nodes]
        if not topics:
            return
        topic = self._random.choice(topics)
        self._tree.put(config.topic_path(topic), config.encode({"unclean.leader.election.enable": "false"}))
        self._tree.put_sequential(config_change.PREFIX, config_change.encode(f"topics/{topic}"))
        self._forbidden[topic] = forbidden = object()

        def end() -> None:
            if self._forbidden.get(topic) is forbidden:
                allowed.discard(topic)

        asyncio.get_running_loop().call_later(FORBIDDEN_AFTER_SECONDS, end)

    def move_controller(self) -> None:
        self._tree.remove(controller_znode.PATH)

    def prefer_controller(self) -> None:
        self._tree.put(candidates.path(self._random.choice(self._cluster.processes).id), None)

    def prefer_no_controller(self) -> None:
        for name in self._tree.children(candidates.PARENT):
            self._tree.remove(f"{candidates.PARENT}/{name}")

    # --- mistakes ---

    def junk_topic(self) -> None:
        if topic := self._some_topic():
            self._overwrite(topic_znode.path(topic))

    def junk_new_topic(self) -> None:
        self._junk_at(topic_znode.path(f"junk-{self._random.randint(0, 9)}"))

    def junk_state(self) -> None:
        names = [name for name in self._some_partitions() if partition_state.path(name) in self._tree.nodes]
        if names and self._epoch_is_known():
            self.edited_states.add(names[0])
            self._cluster.checker.protected.add(names[0])  # the old state comes back later, with a new mzxid
            self._overwrite(partition_state.path(names[0]))

    def junk_registration(self) -> None:
        registered = self._tree.children(broker_id.PARENT)
        if registered:
            self._overwrite(f"{broker_id.PARENT}/{self._random.choice(registered)}")

    def unresolvable_host(self) -> None:
        """A broker registers under a name that no resolver takes."""
        broker = Broker(BrokerId(70), (Endpoint("PLAINTEXT", "broker-7..svc", 9092),))
        self._put_for_a_while(broker_id.path(broker.id), broker_id.encode(broker, 0))

    def lose_state(self) -> None:
        names = [name for name in self._some_partitions() if partition_state.path(name) in self._tree.nodes]
        if names and self._epoch_is_known():
            self.edited_states.add(names[0])
            self._tree.remove(partition_state.path(names[0]))

    def protect_state(self) -> None:
        names = [name for name in self._movable_partitions() if partition_state.path(name) in self._tree.nodes]
        if names:
            self._protect(partition_state.path(names[0]))

    def protect_topic(self) -> None:
        if topic := self._some_topic():
            self._protect(topic_znode.path(topic))

    def notification_with_a_child(self) -> None:
        parent = self._random.choice((isr_change.PARENT, log_dir_event.PARENT))
        self._put_for_a_while(f"{parent}/junk", b"junk")
        self._put_for_a_while(f"{parent}/junk/child", None)

    def remove_watched_parent(self) -> None:
        """A well-known trick against deletions that are stuck."""
        parents = (delete_topics.PARENT, isr_change.PARENT, log_dir_event.PARENT, config_change.PARENT)
        self._tree.remove(self._random.choice(parents))

    def junk_notifications(self) -> None:
        for prefix in (isr_change.PREFIX, log_dir_event.PREFIX):
            self._tree.put_sequential(prefix, self._random.choice(JUNK))

    def junk_controller(self) -> None:
        if controller_znode.PATH in self._tree.nodes:
            self._tree.put(controller_znode.PATH, self._random.choice((*JUNK, b'{"version":1,"brokerid":99}')))

    def junk_epoch(self) -> None:
        if epoch_znode.PATH in self._tree.nodes:
            self._epoch_lost = True
            self._tree.put(epoch_znode.PATH, self._random.choice(JUNK))

    def delete_epoch(self) -> None:
        """Only while some state holds an epoch, because otherwise nothing in ZooKeeper shows how many controllers there
        were. Only once and not after junk, because the newest epoch may be in no state yet. Junk may come later: it
        keeps the version of the znode."""
        if not self._epoch_lost and any(self._holds_epoch(path) for path in self._tree.nodes):
            self._epoch_lost = True
            self._tree.remove(epoch_znode.PATH)

    def _holds_epoch(self, path: str) -> bool:
        """A partition state that can be read. Junk in its place shows nothing."""
        if name_of_state(path) is None:
            return False
        try:
            partition_state.decode(path, self._tree.read(path))
        except ZNodeError:
            return False
        return True

    def _epoch_is_known(self) -> bool:
        """While the znode is missing, only the states hold the epoch."""
        return epoch_znode.PATH in self._tree.nodes

    def mend(self) -> None:
        """Repair everything that only a person can repair and that is still broken."""
        for mend in list(self._mends):
            self._mend_now(mend)

    def _mend_now(self, mend: Callable[[], None]) -> None:
        if mend in self._mends:
            self._mends.remove(mend)
            mend()

    def _overwrite(self, path: str) -> None:
        """Write junk; later restore the old data, if it is still the same znode with the same junk."""
        before, junk = self._tree.nodes[path], self._random.choice(JUNK)
        czxid, data = before.czxid, before.data

        def mend() -> None:
            node = self._tree.nodes.get(path)
            if node is not None and node.czxid == czxid and node.data == junk:
                self._tree.put(path, data)

        if data not in JUNK:
            self._tree.put(path, junk)
            self._mend_later(mend)

    def _junk_at(self, path: str) -> None:
        """Create a junk znode; later remove it, if it is still there."""
        self._put_for_a_while(path, self._random.choice(JUNK))

    def _put_for_a_while(self, path: str, data: bytes | None) -> None:
        if path in self._tree.nodes:
            return
        self._tree.put(path, data)
        czxid = self._tree.nodes[path].czxid

        def mend() -> None:
            node = self._tree.nodes.get(path)
            if node is not None and node.czxid == czxid:
                self._tree.remove(path)

        self._mend_later(mend)

    def _protect(self, path: str) -> None:
        """No other client may write it, until it is unprotected."""
        czxid = self._tree.nodes[path].czxid

        def mend() -> None:
            node = self._tree.nodes.get(path)
            if node is not None and node.czxid == czxid:
                self._tree.unprotect(path)

        if (name := name_of_state(path)) is not None:
            self._cluster.checker.protected.add(name)
        self._tree.protect(path)
        self._mend_later(mend)

    def _mend_later(self, mend: Callable[[], None]) -> None:
        self._mends.append(mend)
        if self._random.random() < 0.5:
            delay = self._random.uniform(*MENDED_AFTER_SECONDS)
            asyncio.get_running_loop().call_later(delay, self._mend_now, mend)

    # --- calls ---

    def _call(self, what: str, ask: Callable[[Controller], Awaitable[Any]]) -> None:
        """Call the acting controller, or sometimes another broker, like a client with old metadata."""
        processes = [process for process in self._cluster.processes if process.controller is not None]
        acting = [process for process in processes if process.acts]
        if not processes:
            return
        process = acting[0] if acting and self._random.random() < 0.9 else self._random.choice(processes)
        controller = process.controller
        assert controller is not None

        async def call() -> None:
            try:
                await self._cluster.call(what, process, ask(controller))
            except KafkaError as error:
                self._cluster.checker.note(what, "refused", error.code.name)

        task = asyncio.get_running_loop().create_task(call())
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._cluster.checker.fail(error)

    # --- choices ---

    def _some_brokers(self) -> tuple[BrokerId, ...]:
        brokers = [process.id for process in self._cluster.processes]
        return tuple(self._random.sample(brokers, self._random.choice((1, 2, 2, 3, 3, 3))))

    def _some_topic(self) -> str | None:
        marked = self._tree.children(delete_topics.PARENT)
        names = [n for n in self._tree.children(topic_znode.PARENT) if n not in marked and n.startswith("topic-")]
        return self._random.choice(names) if names else None

    def _partitions(self, topic: str) -> Mapping[int, Assignment]:
        path = topic_znode.path(topic)
        try:
            return topic_znode.decode(path, self._tree.read(path)).partitions
        except ZNodeError:
            return {}

    def _movable_partitions(self) -> list[TopicPartition]:
        """Also partitions with records, which must survive what the operator does to them."""
        if self._cluster.data is not None and self._random.random() < 0.7:
            names = self._cluster.data.partitions()
            return self._random.sample(names, self._random.randint(1, len(names)))
        return self._some_partitions()

    def _some_partitions(self) -> list[TopicPartition]:
        names = [TopicPartition(t, n) for t in {self._some_topic(): None} if t for n in self._partitions(t)]
        return self._random.sample(names, self._random.randint(1, len(names))) if names else []

    def _moving(self) -> list[TopicPartition]:
        topics = self._tree.children(topic_znode.PARENT)
        return [TopicPartition(t, n) for t in topics for n, a in self._partitions(t).items() if a.is_being_reassigned]

    def _targets(self) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        return {name: self._some_brokers() for name in (*self._movable_partitions(), *self._movable_partitions())}
