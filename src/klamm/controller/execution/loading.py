"""What a new controller reads: everything, in bulk, with watches. Bad data in a znode is skipped and reported.

Partition numbers come from the assignments, so the children of a topic are never listed. Everything is read in windows,
and the next windows are on their way while one is processed; states of the first topics are read while the last topics
are still to come. So ZooKeeper and the controller work at the same time, and between windows the loop is free (design
D3, design D13).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeVar, cast

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import ReplicaState
from klamm.controller.decisions.faults import concerning, concerning_topic, find_fault, for_all
from klamm.controller.decisions.steps import chunked
from klamm.controller.execution.commit import Observed, state_paths
from klamm.controller.execution.quarantine import Quarantine
from klamm.controller.recorder import Recorder
from klamm.model.brokers import Broker, LiveBroker
from klamm.model.errors import NoAuth, ZNodeError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Node, Stat, Watcher, ZooKeeper
from klamm.zookeeper.isolated_reads import read_nodes, read_states
from klamm.zookeeper.retries import children_or_none, until_connected
from klamm.zookeeper.znodes import broker_id
from klamm.zookeeper.znodes import topic as topic_znode

T = TypeVar("T")
R = TypeVar("R")

WINDOW: Final = 2_000
"""States in one read: four requests in flight, about 5 ms to decode."""

STATES_AT_ONCE: Final = 20_000
"""States taken into the columns in one turn of the loop: a few milliseconds."""

TOPICS_WINDOW: Final = 50
"""Topics in one read."""

DECODED_AT_ONCE: Final = 2_000
"""Assignments decoded in one turn of the loop: a few milliseconds."""

AHEAD: Final = 3
"""Windows on their way while one is processed. Few, because the work of those that arrive together adds up."""


class ZNodeReader:
    """The reads of the active controller. Each read renews the watch that led to it."""

    def __init__(
        self, zk: ZooKeeper, watch: Watcher, recorder: Recorder, listeners: frozenset[str], quarantine: Quarantine
    ) -> None:
        self._zk = zk
        self._quarantine = quarantine
        self._watch = watch
        self._recorder = recorder
        self._listeners = sorted(listeners)

    async def names(self, parent: str) -> list[str]:
        """The children, sorted and watched. A parent that is absent is created, so that it can be watched."""
        while True:
            names = await until_connected(lambda: children_or_none(self._zk, parent, self._watch))
            if names is not None:
                return names
            await self._zk.ensure_path(parent)

    async def names_if_permitted(self, parent: str) -> list[str]:
        """For parents without which the controller can do its work: none, and a report, if they may not be read."""
        try:
            return await self.names(parent)
        except NoAuth as error:
            self._recorder.znode_skipped(ZNodeError(parent, f"it may not be read: {error}"))
            return []

    async def nodes(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._visible(self._zk.get_many, paths)

    async def watched(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._visible(lambda some: self._zk.get_many_and_watch(some, self._watch), paths)

    async def present(self, paths: Sequence[str]) -> list[bool]:
        """Whether each node exists, even if it may not be read or is in quarantine."""
        return [stat is not None for stat in await asyncio.gather(*map(self._exists, paths))]

    async def _exists(self, path: str) -> Stat | None:
        return await until_connected(lambda: self._zk.exists(path))

    async def _visible(
        self, read: Callable[[Sequence[str]], Awaitable[list[Node | None]]], paths: Sequence[str]
    ) -> list[Node | None]:
        """A node that is in quarantine or may not be read counts as absent."""
        if not paths:
            return []
        nodes = await until_connected(lambda: read_nodes(read, paths, self._recorder.znode_skipped))
        return self._quarantine.visible(paths, nodes)

    async def brokers(self, known: Mapping[BrokerId, LiveBroker]) -> dict[BrokerId, LiveBroker]:
        """The registered brokers with their epochs. A registration that cannot be read is skipped until it is repaired.
        But a known broker does not count as dead because its registration was edited: while the epoch stays the same,
        so does the broker."""
        names = await self.names(broker_id.PARENT)
        paths = [f"{broker_id.PARENT}/{name}" for name in names]
        nodes = await self.watched(paths)
        brokers: dict[BrokerId, LiveBroker] = {}
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                with concerning(path):
                    live = self._broker(path, node, known)
                if live is not None:
                    brokers[live.broker.id] = live
        return dict(sorted(brokers.items()))

    def _broker(self, path: str, node: Node, known: Mapping[BrokerId, LiveBroker]) -> LiveBroker | None:
        try:
            broker = broker_id.decode(path, node.data)
            self._refuse_without_listener(path, broker)
            return LiveBroker(broker, BrokerEpoch(node.stat.czxid))
        except ZNodeError as error:
            self._recorder.znode_skipped(error)
            same = (live for live in known.values() if path == broker_id.path(live.broker.id))
            return next((live for live in same if live.epoch == node.stat.czxid), None)

    def _refuse_without_listener(self, path: str, broker: Broker) -> None:
        """The controller could not reach such a broker, and its peers could not fetch from it."""
        for listener in self._listeners:
            if broker.endpoint(listener) is None:
                raise ZNodeError(path, f"no endpoint on listener {listener}")

    async def assignments(self, topics: Sequence[str]) -> dict[str, topic_znode.TopicAssignment]:
        """No topic is left out: one whose znode cannot be read has no partitions until it is repaired."""
        paths = [topic_znode.path(topic) for topic in topics]
        nodes = await self.watched(paths)
        found: dict[str, topic_znode.TopicAssignment] = {}
        looked_at: dict[int, Assignment] = {}
        partitions = 0
        for topic, path, node in zip(topics, paths, nodes, strict=True):
            if node is None:
                continue
            with concerning(path):
                found[topic] = self._assignment(path, node, looked_at)
            partitions += len(found[topic].partitions)
            if partitions >= DECODED_AT_ONCE:
                partitions = 0
                await asyncio.sleep(0)
        return found

    def _assignment(self, path: str, node: Node, looked_at: dict[int, Assignment]) -> topic_znode.TopicAssignment:
        try:
            assignment = topic_znode.decode(path, node.data)
        except ZNodeError as error:
            self._recorder.znode_skipped(error)
            return topic_znode.TopicAssignment({})
        return assignment._replace(partitions=self._sound(path, assignment.partitions, looked_at))

    def _sound(
        self, path: str, partitions: dict[int, Assignment], looked_at: dict[int, Assignment]
    ) -> dict[int, Assignment]:
        """Usually all are sound. Partitions on the same brokers share one assignment object, so few have to be checked:
        `looked_at` holds the objects already checked, by identity, and keeps them alive."""
        different = dict(zip(map(id, partitions.values()), partitions.values(), strict=True))
        if different.keys() <= looked_at.keys() or all(map(_is_sound, different.values())):
            looked_at.update(different)
            return partitions
        sound: dict[int, Assignment] = {}
        for number, assignment in partitions.items():
            if _is_sound(assignment):
                sound[number] = assignment
            else:
                reason = f"partition {number}: {list(assignment.replicas)} names a broker twice or has a negative id"
                self._recorder.znode_skipped(ZNodeError(path, reason))
        return sound

    async def states(self, context: ControllerContext, partitions: Sequence[PartitionIndex]) -> Observed:
        paths = state_paths(context, partitions)
        return Observed(partitions, paths, *await until_connected(lambda: read_states(self._zk, paths)))

    def take_states(self, context: ControllerContext, seen: Observed) -> None:
        partitions, _, states, versions = seen
        if not all(type(state) is LeaderAndIsr for state in states):
            for partition, state in zip(partitions, states, strict=True):
                if isinstance(state, ZNodeError):
                    self._recorder.znode_skipped(state)
                    context.unreadable.add(partition)
            found = [row for row in zip(*seen, strict=True) if isinstance(row[2], LeaderAndIsr)]
            partitions, states, versions = [r[0] for r in found], [r[2] for r in found], [r[3] for r in found]
        read = cast(Sequence[LeaderAndIsr], states)
        try:
            context.put_states(partitions, read, versions)
        except Exception:
            rows = dict(zip(partitions, zip(read, versions, strict=True), strict=True))
            find_fault(context, partitions, lambda partition: context.put_state(partition, *rows[partition]))
            raise

    async def load_states(
        self, context: ControllerContext, windows: AsyncGenerator[Sequence[PartitionIndex], None]
    ) -> None:
        async with aclosing(_read_ahead(windows, lambda window: self.states(context, window))) as found:
            async for seen in found:
                self.take_states(context, seen)


def _is_sound(assignment: Assignment) -> bool:
    replicas = assignment.replicas
    return len(set(replicas)) == len(replicas) and min(replicas, default=0) >= 0


async def load(context: ControllerContext, reader: ZNodeReader) -> None:
    """Load brokers, topics, assignments and states into the context of a new term."""
    context.brokers.update(await reader.brokers({}))
    topics = await reader.names(topic_znode.PARENT)
    await reader.load_states(context, _load_topics(context, reader, topics))
    live = context.live
    for some in chunked(list(context.all_partitions()), STATES_AT_ONCE):
        for_all(context, some, lambda part: context.load_states(part, live))
        await asyncio.sleep(0)
    for broker in context.replicas.brokers:
        found = ReplicaState.ONLINE if context.is_live(broker) else ReplicaState.DELETION_INELIGIBLE
        for some in chunked(context.replicas.on(broker), STATES_AT_ONCE):
            context.replicas.load(broker, some, found)
            await asyncio.sleep(0)


async def _load_topics(
    context: ControllerContext, reader: ZNodeReader, topics: Sequence[str]
) -> AsyncGenerator[list[PartitionIndex], None]:
    """Yields windows of partitions whose states must be read."""
    unread: list[PartitionIndex] = []
    async with aclosing(_read_ahead(_windows(topics, TOPICS_WINDOW), reader.assignments)) as windows:
        async for assignments in windows:
            unread += _add_topics(context, assignments)
            while len(unread) >= WINDOW:
                yield unread[:WINDOW]
                del unread[:WINDOW]
    if unread:
        yield unread


def _add_topics(
    context: ControllerContext, assignments: Mapping[str, topic_znode.TopicAssignment]
) -> list[PartitionIndex]:
    for topic, assignment in assignments.items():
        context.add_topic(topic, assignment.topic_id)
    try:
        return context.add_all({topic: assignment.partitions for topic, assignment in assignments.items()})
    except Exception:
        for topic, assignment in assignments.items():  # each in an empty context, because this one may already have it
            with concerning_topic(topic):
                ControllerContext(context.controller_epoch).add_partitions(topic, assignment.partitions)
        raise


async def _windows(items: Sequence[T], size: int) -> AsyncGenerator[Sequence[T], None]:
    for window in chunked(items, size):
        yield window


async def _read_ahead(
    windows: AsyncGenerator[T, None], read: Callable[[T], Coroutine[None, None, R]]
) -> AsyncGenerator[R, None]:
    """Yields window by window, in order, while the next ones are on their way."""
    in_flight: deque[asyncio.Task[R]] = deque()
    try:
        async with aclosing(windows):
            async for window in windows:
                in_flight.append(asyncio.create_task(read(window)))
                await asyncio.sleep(0)  # lets the read send its request
                if len(in_flight) > AHEAD:
                    yield await in_flight.popleft()
        while in_flight:
            yield await in_flight.popleft()
            await asyncio.sleep(0)
    finally:
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
