"""Sends the markers of decided transactions until every partition has one, and says so exactly once per transaction.

Nothing gives up: a marker that a partition does not take is sent again, to its leader of that moment, after a pause. A
partition needs none only if ZooKeeper says that it was deleted. A transaction ends early only if a partition has seen a
later producer or coordinator epoch, or if the coordinator moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from klamm.broker.coordinators.transactions.marker_channel import MarkerChannel, MarkerEndpoint, Queued, pause_after
from klamm.broker.coordinators.transactions.markers import (
    EXPECTED,
    MarkerAnswers,
    Outcome,
    TransactionEnd,
    outcome_of,
    route,
)
from klamm.broker.metadata_cache import MetadataCache
from klamm.model.errors import ErrorCode, ZNodeError, ZooKeeperError
from klamm.model.guard import Guard
from klamm.model.ids import BrokerId, TopicPartition

ENDS_PER_SLICE: Final = 100

log = logging.getLogger(__name__)

Written = Callable[[TransactionEnd], None]


class MarkerSender:
    def __init__(
        self,
        metadata: MetadataCache,
        listener: str,
        guard: Guard,
        endpoint: Callable[[BrokerId], MarkerEndpoint],
        partitions_left: Callable[[str], Awaitable[int]],
    ) -> None:
        """`partitions_left` asks ZooKeeper how many partitions a topic has. It raises ZooKeeperError and ZNodeError."""
        self._metadata = metadata
        self._listener = listener
        self._guard = guard
        self._endpoint = endpoint
        self._partitions_left = partitions_left
        self._open: dict[int, dict[str, tuple[TransactionEnd, Written]]] = {}
        """By partition of the coordinator's topic, then by transactional id."""
        self._channels: dict[BrokerId, MarkerChannel] = {}
        self._waiting: Queued = {}
        self._has_waiting = asyncio.Event()
        self.fenced = 0

    @property
    def waiting_count(self) -> int:
        """Transactions with a partition that has no leader to send to."""
        return len(self._waiting)

    @property
    def open_count(self) -> int:
        return sum(map(len, self._open.values()))

    def send(self, end: TransactionEnd, written: Written) -> None:
        """`written` is called once, when every partition has its marker; never if the end is dropped before."""
        former = self._open.setdefault(end.state_partition, {}).pop(end.transactional_id, None)
        if former is not None:
            former[0].is_over = True
        self._open[end.state_partition][end.transactional_id] = (end, written)
        self._route(end, end.missing)
        self._maybe_finish(end)

    def drop(self, state_partition: int) -> None:
        """The coordinator has moved: the next one sends the markers of what it finds decided."""
        for end, _ in self._open.pop(state_partition, {}).values():
            end.is_over = True
            self._waiting.pop(end, None)

    async def retry_waiting(self) -> None:
        """Runs for ever: looks for leaders of partitions that have none. A pause per round is enough for all."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            await asyncio.sleep(min(pause_after(end.failures + 1) for end in self._waiting) if self._waiting else 0)
            await self._forget_deleted()
            for number, end in enumerate(list(self._waiting), 1):
                partitions = self._waiting.pop(end, None)
                if partitions is not None:
                    self._route(end, partitions & end.missing)
                    self._maybe_finish(end)
                if number % ENDS_PER_SLICE == 0:
                    await asyncio.sleep(0)

    async def _forget_deleted(self) -> None:
        """Ask ZooKeeper about the topics of waiting partitions that this broker does not know."""
        unknown: dict[str, dict[TransactionEnd, set[TopicPartition]]] = {}
        for end, partitions in self._waiting.items():
            for name in partitions:
                if self._leader_of(name) is None:
                    unknown.setdefault(name.topic, {}).setdefault(end, set()).add(name)
        for topic, ends in unknown.items():
            try:
                left = await self._partitions_left(topic)
            except (ZooKeeperError, ZNodeError) as error:
                log.warning("cannot find out whether %r was deleted: %s", topic, error)
                continue
            for end, partitions in ends.items():
                end.missing -= {name for name in partitions if name.partition >= left}

    # --- routing ---

    def _leader_of(self, name: TopicPartition) -> BrokerId | None:
        found = self._metadata.partition(name)
        return None if found is None else found.leader

    def _is_reachable(self, broker: BrokerId) -> bool:
        return self._metadata.endpoint(broker, self._listener) is not None

    def _route(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> None:
        if end.is_over:
            return
        routes = route(partitions, self._leader_of, self._is_reachable)
        for broker, names in routes.by_leader.items():
            self._channel(broker).add(end, names)
        if routes.waiting:
            end.failures += 1
            self._wait(end, routes.waiting)

    def _wait(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> None:
        self._waiting.setdefault(end, set()).update(partitions)
        self._has_waiting.set()

    def _channel(self, broker: BrokerId) -> MarkerChannel:
        channel = self._channels.get(broker)
        if channel is None:
            channel = self._channels[broker] = MarkerChannel(
                broker,
                self._endpoint(broker),
                is_still_leader=lambda name: self._leader_of(name) == broker,
                answered=self._answered,
                again=self._again,
            )
            self._guard.start("transaction markers for broker", broker, partial(self._run, broker, channel))
        return channel

    async def _run(self, broker: BrokerId, channel: MarkerChannel) -> None:
        await channel.run()
        del self._channels[broker]  # in the same step as the decision that it is idle

    # --- answers ---

    def _answered(self, batch: Queued, answers: MarkerAnswers) -> None:
        for end, partitions in batch.items():
            if not end.is_over:
                self._settle(end, partitions, answers)

    def _settle(self, end: TransactionEnd, partitions: set[TopicPartition], answers: MarkerAnswers) -> None:
        again: set[TopicPartition] = set()
        for name in partitions:
            error = answers.get((end.producer_id, name), ErrorCode.UNKNOWN_SERVER_ERROR)
            match outcome_of(error):
                case Outcome.DONE:
                    end.missing.discard(name)
                case Outcome.FENCED:
                    self._fenced(end, name, error)
                    return
                case Outcome.AGAIN:
                    again.add(name)
                    if error not in EXPECTED:
                        log.error("%s refused the marker of %r: %s", name, end.transactional_id, error.name)
        if again:
            end.failures += 1
            self._wait(end, again)
        else:
            end.failures = 0
        self._maybe_finish(end)

    def _again(self, batch: Queued) -> None:
        for end, partitions in batch.items():
            self._route(end, partitions & end.missing)
            self._maybe_finish(end)

    def _fenced(self, end: TransactionEnd, name: TopicPartition, error: ErrorCode) -> None:
        """Another producer epoch or coordinator has been there. The transaction stays as it is until it is loaded
        again."""
        self.fenced += 1
        log.error("%s fenced the marker of %r (%s): its markers stop", name, end.transactional_id, error.name)
        self._close(end)

    def _maybe_finish(self, end: TransactionEnd) -> None:
        if end.missing or end.is_over:
            return
        written = self._close(end)
        if written is not None:
            written(end)

    def _close(self, end: TransactionEnd) -> Written | None:
        end.is_over = True
        self._waiting.pop(end, None)
        _, written = self._open.get(end.state_partition, {}).pop(end.transactional_id, (end, None))
        return written
