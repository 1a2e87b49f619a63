"""The load of the brokers over time: what each stores, how fast that grows, and which brokers do not answer.

Bytes come from DescribeLogDirs, which klamm and Apache Kafka both answer. A rate is the growth between two samples, so
it is what was written; what retention removes in between makes it smaller, never negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.admin.reassignment_progress import Move, MoveProgress, Rate, progress_of, rate_of
from klamm.client.cluster_load import Sizes

SAMPLES_MAX: Final = 120
FREE_SHARE_LEAST: Final = 0.1
"""A volume with less free space is said to be nearly full."""
MOVES_WINDOW: Final = 5
"""Samples over which the rate of moves is measured."""


class Directory(NamedTuple):
    broker: int
    path: str
    size_bytes: int
    replicas: int
    problem: str
    total_bytes: int | None = None
    """The size of its volume. None if the broker does not tell: Kafka does since 3.3."""
    usable_bytes: int | None = None

    @property
    def free_share(self) -> float | None:
        if not self.total_bytes or self.usable_bytes is None:
            return None
        return self.usable_bytes / self.total_bytes


class BrokerSample(NamedTuple):
    """What one broker answered."""

    directories: tuple[Directory, ...] = ()
    problem: str = ""
    """Why it does not answer; empty if it does."""

    @property
    def size_bytes(self) -> int:
        return sum(directory.size_bytes for directory in self.directories)


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """The load at one moment. Rates are series with the newest value last."""

    sampled_at: float | None = None
    """On the monotonic clock; None before the first sample."""
    brokers: Mapping[int, BrokerSample] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=dict)
    rates: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Bytes per second that each broker wrote."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each topic, over all replicas."""
    moves: Sequence[MoveProgress] = ()
    move_rate: Rate | None = None
    """None before the second sample of the moves."""

    @property
    def silent(self) -> dict[int, str]:
        return {broker: sample.problem for broker, sample in self.brokers.items() if sample.problem}

    @property
    def nearly_full(self) -> list[Directory]:
        directories = (d for sample in self.brokers.values() for d in sample.directories)
        return [d for d in directories if d.free_share is not None and d.free_share < FREE_SHARE_LEAST]

    def size_of(self, broker: int) -> int | None:
        sample = self.brokers.get(broker)
        return None if sample is None or sample.problem else sample.size_bytes

    @property
    def total_rate(self) -> tuple[float, ...]:
        longest = max(map(len, self.rates.values()), default=0)
        padded = [(0.0,) * (longest - len(series)) + series for series in self.rates.values()]
        return tuple(map(sum, zip(*padded, strict=True)))


class LoadHistory:
    """Turns samples into loads with rates."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[float, int]] = {}
        self._rates: dict[int, deque[float]] = {}
        self._moves: deque[tuple[float, list[MoveProgress]]] = deque(maxlen=MOVES_WINDOW)

    def add(
        self, now: float, brokers: Mapping[int, BrokerSample], sizes: Sizes, moving: Iterable[Move] = ()
    ) -> ClusterLoad:
        for broker, sample in brokers.items():
            if sample.problem:
                self._last.pop(broker, None)
                continue
            then, before = self._last.get(broker, (now, sample.size_bytes))
            if now > then:
                grown = max(sample.size_bytes - before, 0) / (now - then)
                self._rates.setdefault(broker, deque(maxlen=SAMPLES_MAX)).append(grown)
            self._last[broker] = (now, sample.size_bytes)
        for broker in self._rates.keys() - brokers.keys():
            del self._rates[broker]
        rates = {broker: tuple(series) for broker, series in self._rates.items()}
        progress = self._progress(now, progress_of(moving, sizes))
        return ClusterLoad(now, dict(brokers), sizes, rates, _by_topic(sizes), *progress)

    def _progress(self, now: float, moves: list[MoveProgress]) -> tuple[list[MoveProgress], Rate | None]:
        if not moves:
            self._moves.clear()
            return [], None
        self._moves.append((now, moves))
        then, before = self._moves[0]
        return moves, rate_of(before, moves, now - then) if now > then else None


def _by_topic(sizes: Sizes) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, replicas in sizes.items():
        found[name.topic] = found.get(name.topic, 0) + sum(replicas.values())
    return found
