"""One registry of metrics under Kafka's own names.

A metric is named as in JMX: `kafka.controller:type=KafkaController,name=ActiveControllerCount`. An update only changes
an attribute, in the loop. Metrics are formatted when they are scraped (`prometheus`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

TIMER_SAMPLES: Final = 1028
"""As many samples as Kafka's histograms keep. New samples replace old ones."""
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
BUCKETS_MS: Final = (0.25, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 5_000.0, 30_000.0)
"""From a request that only reads memory to one that waits for request.timeout.ms. Few, because each is a series for
each API and part."""
METRICS_PER_SLICE: Final = 500
BUCKET_BOUNDS: Final = (*(str(bound / 1000) for bound in BUCKETS_MS), "+Inf")


class MetricName(NamedTuple):
    group: str
    """`kafka.controller`, `kafka.server`, ..."""
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        tags = "".join(f",{key}={value}" for key, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"


class Meter:
    """A count that only grows. The scraper derives rates from it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def mark(self, n: int = 1) -> None:
        self.count += n


class Gauge:
    """A value set by its owner."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Timer:
    """Count, sum and recent distribution of durations, in milliseconds."""

    __slots__ = ("_recent", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0
        self._recent: deque[float] = deque(maxlen=TIMER_SAMPLES)

    def update(self, duration_ms: float) -> None:
        self.count += 1
        self.sum_ms += duration_ms
        if duration_ms > self.max_ms:
            self.max_ms = duration_ms
        self._recent.append(duration_ms)

    def copied(self) -> Timer:
        copy = Timer()
        copy.count, copy.sum_ms, copy.max_ms = self.count, self.sum_ms, self.max_ms
        copy._recent = self._recent.copy()
        return copy

    def quantiles(self) -> dict[float, float]:
        ordered = sorted(self._recent)
        if not ordered:
            return {}
        return {q: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in QUANTILES}


class BucketTimer(Timer):
    """A timer that also counts durations by size. Unlike quantiles, buckets of several brokers and any stretch of time
    can be added up."""

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        super().__init__()
        self.buckets = [0] * (len(BUCKETS_MS) + 1)
        """How many durations are at most each bound, and above the bound before it; the last has no bound."""

    def update(self, duration_ms: float) -> None:
        # Without super().update(): this runs five times for each request.
        self.count += 1
        self.sum_ms += duration_ms
        if duration_ms > self.max_ms:
            self.max_ms = duration_ms
        self._recent.append(duration_ms)
        self.buckets[bisect_left(BUCKETS_MS, duration_ms)] += 1


class Histogram:
    """A timer's buckets, in seconds, as a metric of its own."""

    __slots__ = ("timer",)

    def __init__(self, timer: BucketTimer) -> None:
        self.timer = timer

    def copied(self) -> Histogram:
        copy = BucketTimer()
        copy.count, copy.sum_ms, copy.buckets = self.timer.count, self.timer.sum_ms, list(self.timer.buckets)
        return Histogram(copy)

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound in seconds, as Prometheus writes it, with the durations up to it."""
        return list(zip(BUCKET_BOUNDS, accumulate(self.timer.buckets), strict=True))


Instrument = Meter | Gauge | Timer | Histogram | Callable[[], float]


class MetricsRegistry:
    """All metrics of one broker process."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Instrument] = {}
        self._collections: list[Callable[[], Iterable[tuple[MetricName, float]]]] = []

    def meter(self, group: str, type: str, name: str, **tags: str) -> Meter:
        meter = self._metrics.setdefault(_name(group, type, name, tags), Meter())
        assert isinstance(meter, Meter)
        return meter

    def gauge(self, group: str, type: str, name: str, **tags: str) -> Gauge:
        gauge = self._metrics.setdefault(_name(group, type, name, tags), Gauge())
        assert isinstance(gauge, Gauge)
        return gauge

    def histogram(self, group: str, type: str, name: str, timer: BucketTimer, **tags: str) -> None:
        """Register the buckets of a timer under a name of their own."""
        self._metrics[_name(group, type, name, tags)] = Histogram(timer)

    def bucket_timer(self, group: str, type: str, name: str, **tags: str) -> BucketTimer:
        timer = self._metrics.setdefault(_name(group, type, name, tags), BucketTimer())
        assert isinstance(timer, BucketTimer)
        return timer

    def timer(self, group: str, type: str, name: str, **tags: str) -> Timer:
        timer = self._metrics.setdefault(_name(group, type, name, tags), Timer())
        assert isinstance(timer, Timer)
        return timer

    def read(self, group: str, type: str, name: str, value: Callable[[], float], **tags: str) -> None:
        """Register a value that is read at each scrape, so it must be cheap. The ending of its name decides whether it
        is a counter."""
        self._metrics[_name(group, type, name, tags)] = value

    def remove(self, group: str, type: str, name: str, **tags: str) -> None:
        self._metrics.pop(_name(group, type, name, tags), None)

    def value(self, group: str, type: str, name: str, **tags: str) -> float:
        """The current value (the count, for meters and timers), for tests and status pages."""
        return value_of(self._metrics[_name(group, type, name, tags)])

    def names(self) -> list[MetricName]:
        return sorted(self._metrics)

    def read_many(self, values: Callable[[], Iterable[tuple[MetricName, float]]]) -> None:
        """Register values whose names are known only at a scrape, such as those of topics. There must not be many."""
        self._collections.append(values)

    def snapshot(self) -> Generator[None, None, list[tuple[MetricName, Instrument]]]:
        """All metrics as they are, in any order, so that another thread can format them: with thousands of series that
        takes longer than the loop may be held. Yields after each slice."""
        found: list[tuple[MetricName, Instrument]] = []
        for number, (name, instrument) in enumerate(list(self._metrics.items()), 1):
            found.append((name, _as_it_is(instrument)))
            if number % METRICS_PER_SLICE == 0:
                yield
        for values in self._collections:
            yield
            found += [(name, _constant(value)) for name, value in values()]
        return found


def _as_it_is(instrument: Instrument) -> Instrument:
    return instrument.copied() if isinstance(instrument, Timer | Histogram) else _constant(value_of(instrument))


def _constant(value: float) -> Instrument:
    return lambda: value


def _name(group: str, type: str, name: str, tags: dict[str, str]) -> MetricName:
    # Kafka's tags have dashes, which keywords in Python cannot have.
    return MetricName(group, type, name, tuple((key.replace("_", "-"), value) for key, value in sorted(tags.items())))


def value_of(instrument: Instrument) -> float:
    match instrument:
        case Meter() | Timer():
            return instrument.count
        case Histogram():
            return instrument.timer.count
        case Gauge():
            return instrument.value
        case _:
            return instrument()
