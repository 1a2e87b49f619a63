"""A prober: it writes to every partition through every broker at a fixed rate and notes when that worked.

It has no metadata and no retries, whose delays would be taken for an outage: each record goes to each broker, over a
connection of its own for each partition, and only the leader takes it. A record counts if it was acknowledged by all
replicas in sync within `ANSWER_SECONDS` of its send. One that waited in a broker until the partition recovered does
not. A gap reaches from the send of the last record that counts to the send of the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from klamm.client.addresses import Address
from klamm.client.link import BrokerLink
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.wire.records import Record, build_batch

PERIOD_SECONDS = 0.1
ANSWER_SECONDS = 0.4
BROKER_TIMEOUT_MS = 300
"""The broker gives up before the prober does, so that a stalled record does not hold up the next one."""
NEAR_MS = 300
SILENCE_MS = 500
BREAK_MS = 750
"""The report does not count a shorter break between two outages either."""
FOR_ALL_REPLICAS = -1


class Gap(NamedTuple):
    place: TopicPartition
    start: int
    end: int
    """Milliseconds since 1970."""

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1000


class Prober:
    def __init__(
        self, brokers: Sequence[Address], places: Sequence[TopicPartition], processes: Callable[[], Iterable[int]]
    ) -> None:
        """`processes`: the ids of the brokers that run at the moment."""
        self._brokers = brokers
        self._processes = processes
        self._good: dict[TopicPartition, set[int]] = {place: set() for place in places}
        self._held_up: list[tuple[int, int, int]] = []
        """From, to, and how long in between a process that wanted to run had to wait for a processor."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Prober]:
        tasks = [asyncio.create_task(self._probe(broker, place)) for broker in self._brokers for place in self._good]
        tasks.append(asyncio.create_task(self._watch_the_machine()))
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            failures = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
            assert not failures, failures

    def calm(self, milliseconds: int) -> bool:
        """Every partition could be written without a break for so long, until now."""
        since = _now_ms() - milliseconds
        return all(
            all(later - before < SILENCE_MS for before, later in pairwise(recent))
            for sent in self._good.values()
            for recent in ([since, *sorted(t for t in sent if t > since), since + milliseconds],)
        )

    def gaps(self, longer_than: float) -> list[Gap]:
        """Gaps of more than so many seconds."""
        found = [gap for place, sent in self._good.items() for gap in gaps_between(place, sorted(sent))]
        return [gap for gap in found if gap.seconds > longer_than]

    def was_held_up(self, gap: Gap) -> bool:
        """Brokers waited for a processor at the ends of the gap, or for a good part of it: another load on the machine
        made or moved it, so it says nothing about the cluster."""
        near = [w for start, end, w in self._held_up for t in gap[1:] if start < t + NEAR_MS and end > t - NEAR_MS]
        inside = [w for start, end, w in self._held_up if start < gap.end and end > gap.start]
        return sum(near) > NEAR_MS or sum(inside) > 0.2 * (gap.end - gap.start)

    async def _watch_the_machine(self) -> None:
        waited, before = _waited_ms(self._processes()), _now_ms()
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            now_waited, now = _waited_ms(self._processes()), _now_ms()
            longest = max((ms - waited.get(thread, ms) for thread, ms in now_waited.items()), default=0)
            self._held_up.append((before, now, max(longest, now - before - int(2000 * PERIOD_SECONDS))))
            waited, before = now_waited, now

    async def _probe(self, address: Address, place: TopicPartition) -> None:
        link: BrokerLink | None = None
        due = time.monotonic()
        try:
            while True:
                due = max(due + PERIOD_SECONDS, time.monotonic() - PERIOD_SECONDS)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                try:
                    if link is None:
                        link = BrokerLink(AsyncioNetwork(), SystemClock(), address, "prober")
                        await link.connect(ANSWER_SECONDS)
                    await self._send(link, place)
                except (OSError, KlammError):
                    if link is not None:
                        await link.close()
                    link = None
        finally:
            if link is not None:
                with suppress(OSError):
                    await link.close()

    async def _send(self, link: BrokerLink, place: TopicPartition) -> None:
        request = _request(place)
        sent, began = _now_ms(), time.monotonic()
        answer = await link.ask(ApiKey.PRODUCE, request, ANSWER_SECONDS)
        (entry,) = answer.responses[0].partition_responses
        if entry.error_code == ErrorCode.NONE and time.monotonic() - began <= ANSWER_SECONDS:
            self._good[place].add(sent)


def gaps_between(place: TopicPartition, sent: Sequence[int]) -> list[Gap]:
    """
    >>> place = TopicPartition("t", 0)
    >>> [gap[1:] for gap in gaps_between(place, [0, 100, 200, 2000, 2100, 4000, 4100, 4900, 6000])]
    [(200, 4000), (4900, 6000)]
    """
    found: list[Gap] = []
    for start, end in pairwise(sent):
        if end - start < SILENCE_MS:
            continue
        if found and start - found[-1].end < BREAK_MS:
            found[-1] = Gap(place, found[-1].start, end)
        else:
            found.append(Gap(place, start, end))
    return found


def _waited_ms(processes: Iterable[int]) -> dict[str, int]:
    """How long each thread has waited for a processor, since it was started."""
    found = {}
    for process in processes:
        for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with suppress(OSError):  # it has ended
                found[str(file)] = int(file.read_text().split()[1]) // 1_000_000
    return found


def _request(place: TopicPartition) -> Any:
    cls = request_class(ApiKey.PRODUCE)
    batch = build_batch([Record(None, b"probe", _now_ms())])
    entry = cls.TopicProduceData.PartitionProduceData(index=place.partition, records=batch)
    data = [cls.TopicProduceData(name=place.topic, partition_data=[entry])]
    return cls(acks=FOR_ALL_REPLICAS, timeout_ms=BROKER_TIMEOUT_MS, topic_data=data)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
