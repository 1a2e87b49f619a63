"""What a new controller reads: everything, in bulk, with watches, and nothing that is bad brings it down.

Partition numbers come from the assignments, so no child of a topic is ever listed. States are read in windows with the
next window on its way while one is decoded, and the loop is free between windows (design D3, D13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, TypeVar, cast

from klamm.controller.commit import Observed, state_paths, until_connected
from klamm.controller.context import ControllerContext, PartitionIndex
from klamm.controller.quarantine import Quarantine
from klamm.controller.records import Recorder
from klamm.controller.steps import chunked
from klamm.model.brokers import Broker, LiveBroker
from klamm.model.errors import NoNode, ZNodeError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Node, Watcher, ZooKeeper
from klamm.zookeeper.znodes import broker_id, partition_state
from klamm.zookeeper.znodes import topic as topic_znode

T = TypeVar("T")
R = TypeVar("R")

WINDOW: Final = 2_000
"""States of one read: four requests in flight, some 5 ms to decode."""

STATES_AT_ONCE: Final = 20_000
"""Some milliseconds of columns."""

TOPICS_WINDOW: Final = 20
"""Topics of one read: some 7 ms to decode when they have 100 partitions each."""


class Reader:
    """Reads of the active controller, each setting the watch again that its event came from."""

    def __init__(
        self, zk: ZooKeeper, watch: Watcher, recorder: Recorder, listeners: frozenset[str], quarantine: Quarantine
    ) -> None:
        self._zk = zk
        self._quarantine = quarantine
        self._watch = watch
        self._recorder = recorder
        self._listeners = sorted(listeners)

    async def names(self, parent: str) -> list[str]:
        """Children, sorted, and watched; an absent parent has none and is created, so that it can be watched."""
        try:
            return sorted(await until_connected(lambda: self._zk.children(parent, self._watch)))
        except NoNode:
            await self._zk.ensure_path(parent)
            return sorted(await until_connected(lambda: self._zk.children(parent, self._watch)))

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        nodes = await until_connected(lambda: self._zk.get_many(paths)) if paths else []
        return self._quarantine.visible(paths, nodes)

    async def watched(self, paths: Sequence[str]) -> list[Node | None]:
        nodes = await until_connected(lambda: self._zk.get_many_and_watch(paths, self._watch)) if paths else []
        return self._quarantine.visible(paths, nodes)

    async def brokers(self, known: Mapping[BrokerId, LiveBroker]) -> dict[BrokerId, LiveBroker]:
        """Registrations with their epochs. One that cannot be read is nobody, until it is mended; but a broker that we
        know does not die of an edited registration: while its epoch is the same, it is what it was."""
        names = await self.names(broker_id.PARENT)
        paths = [f"{broker_id.PARENT}/{name}" for name in names]
        nodes = await self.watched(paths)
        brokers: dict[BrokerId, LiveBroker] = {}
        for path, node in zip(paths, nodes, strict=True):
            if node is None:
                continue
            try:
                broker = broker_id.decode(path, node.data)
                self._refuse_without_listener(path, broker)
                brokers[broker.id] = LiveBroker(broker, BrokerEpoch(node.stat.czxid))
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
                for live in known.values():
                    if path == broker_id.path(live.broker.id) and live.epoch == node.stat.czxid:
                        brokers[live.broker.id] = live
        return dict(sorted(brokers.items()))

    def _refuse_without_listener(self, path: str, broker: Broker) -> None:
        """We could not send it a word, nor could its peers fetch from it."""
        for listener in self._listeners:
            if broker.endpoint(listener) is None:
                raise ZNodeError(path, f"no endpoint on listener {listener}")

    async def assignments(self, topics: Sequence[str]) -> dict[str, topic_znode.TopicAssignment]:
        """None is left out for being bad: a topic whose znode cannot be read has no partitions, until it is mended."""
        paths = [topic_znode.path(topic) for topic in topics]
        nodes = await self.watched(paths)
        found: dict[str, topic_znode.TopicAssignment] = {}
        for topic, path, node in zip(topics, paths, nodes, strict=True):
            if node is None:
                continue
            try:
                assignment = topic_znode.decode(path, node.data)
                found[topic] = assignment._replace(partitions=self._sound(path, assignment.partitions))
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
                found[topic] = topic_znode.TopicAssignment({})
        return found

    def _sound(self, path: str, partitions: dict[int, Assignment]) -> dict[int, Assignment]:
        """Mostly as they are: partitions on the same brokers share one assignment, so few are looked at."""
        different = {id(assignment): assignment for assignment in partitions.values()}
        if all(map(_is_sound, different.values())):
            return partitions
        sound: dict[int, Assignment] = {}
        for number, assignment in partitions.items():
            if _is_sound(assignment):
                sound[number] = assignment
            else:
                reason = f"partition {number}: {list(assignment.replicas)} names a broker twice or none"
                self._recorder.znode_skipped(ZNodeError(path, reason))
        return sound

    async def load_states(self, context: ControllerContext, partitions: Sequence[PartitionIndex]) -> None:
        async def read(window: Sequence[PartitionIndex]) -> Observed:
            paths = state_paths(context, window)
            contents = await until_connected(lambda: self._zk.read_many(paths))
            return Observed(window, paths, partition_state.decode_many(paths, contents), contents.versions)

        def take(seen: Observed) -> None:
            partitions, _, states, versions = seen
            if not all(type(state) is LeaderAndIsr for state in states):
                for partition, state in zip(partitions, states, strict=True):
                    if isinstance(state, ZNodeError):
                        self._recorder.znode_skipped(state)
                        context.unreadable.add(partition)
                found = [row for row in zip(*seen, strict=True) if isinstance(row[2], LeaderAndIsr)]
                partitions, states, versions = [r[0] for r in found], [r[2] for r in found], [r[3] for r in found]
            context.put_states(partitions, cast(Sequence[LeaderAndIsr], states), versions)

        await _read_ahead(partitions, WINDOW, read, take)


def _is_sound(assignment: Assignment) -> bool:
    replicas = assignment.replicas
    return len(set(replicas)) == len(replicas) and min(replicas, default=0) >= 0


async def load(context: ControllerContext, reader: Reader) -> None:
    """Brokers, topics, assignments, states: the context of a new term."""
    context.brokers.update(await reader.brokers({}))
    topics = await reader.names(topic_znode.PARENT)

    def take(assignments: dict[str, topic_znode.TopicAssignment]) -> None:
        for topic, assignment in assignments.items():
            context.add_topic(topic, assignment.topic_id)
            context.add_partitions(topic, assignment.partitions)

    await _read_ahead(topics, TOPICS_WINDOW, reader.assignments, take)
    partitions = list(context.all_partitions())
    await reader.load_states(context, partitions)
    live = context.live
    for some in chunked(partitions, STATES_AT_ONCE):
        context.load_states(some, live)
        await asyncio.sleep(0)
    for broker in context.assigned_brokers:
        for some in chunked(context.partitions_on(broker), STATES_AT_ONCE):
            context.load_replica_states(broker, some)
            await asyncio.sleep(0)


async def _read_ahead(
    items: Sequence[T],
    size: int,
    read: Callable[[Sequence[T]], Coroutine[None, None, R]],
    take: Callable[[R], None],
) -> None:
    """Window by window in order, the next one on its way while one is taken."""
    upcoming: asyncio.Task[R] | None = None
    try:
        for start in range(0, len(items), size):
            current = upcoming or asyncio.create_task(read(items[:size]))
            ahead = items[start + size : start + 2 * size]
            found = await current
            upcoming = asyncio.create_task(read(ahead)) if ahead else None
            await asyncio.sleep(0)  # it sends now
            take(found)
            await asyncio.sleep(0)
    finally:
        if upcoming is not None:
            upcoming.cancel()
