"""One registry of metrics under Kafka's own names, exported to Prometheus the way Kafka's JMX exporter spells them.

A metric is named as in JMX: `kafka.controller:type=KafkaController,name=ActiveControllerCount`. Updating one is an
attribute change in the loop, nothing more; formatting happens when somebody scrapes. Spelling is that of the JMX
exporter's own example for Kafka, on which operators' dashboards are built: all in lower case, what counts (`...PerSec`,
`...-total`) without that ending and with `_total`, a timer as a summary with its quantiles.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

TIMER_SAMPLES: Final = 1028
"""As many as Kafka's histograms keep; old samples leave as new ones come."""
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
COUNTER_ENDINGS: Final = ("PerSec", "-total")


class MetricName(NamedTuple):
    group: str
    """`kafka.controller`, `kafka.server`, ..."""
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def is_counter(self) -> bool:
        return self.name.endswith(COUNTER_ENDINGS)

    @property
    def prometheus(self) -> str:
        """
        >>> MetricName("kafka.server", "ReplicaManager", "IsrShrinksPerSec").prometheus
        'kafka_server_replicamanager_isrshrinks'
        """
        name = self.name
        for ending in COUNTER_ENDINGS:
            name = name.removesuffix(ending)
        return re.sub(r"[^a-z0-9_]", "_", f"{self.group}_{self.type}_{name}".lower())

    def __str__(self) -> str:
        tags = "".join(f",{key}={value}" for key, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"


class Meter:
    """A count that only grows; rates are the scraper's business."""

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
    """Count, sum and recent distribution of durations in milliseconds."""

    __slots__ = ("_recent", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0
        self._recent: deque[float] = deque(maxlen=TIMER_SAMPLES)

    def update(self, duration_ms: float) -> None:
        self.count += 1
        self.sum_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)
        self._recent.append(duration_ms)

    def quantiles(self) -> dict[float, float]:
        ordered = sorted(self._recent)
        if not ordered:
            return {}
        return {q: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in QUANTILES}


Instrument = Meter | Gauge | Timer | Callable[[], float]


class MetricsRegistry(Collector):
    """Owner of all metrics of one broker process."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Instrument] = {}

    def meter(self, group: str, type: str, name: str, **tags: str) -> Meter:
        meter = self._metrics.setdefault(_name(group, type, name, tags), Meter())
        assert isinstance(meter, Meter)
        return meter

    def gauge(self, group: str, type: str, name: str, **tags: str) -> Gauge:
        gauge = self._metrics.setdefault(_name(group, type, name, tags), Gauge())
        assert isinstance(gauge, Gauge)
        return gauge

    def timer(self, group: str, type: str, name: str, **tags: str) -> Timer:
        timer = self._metrics.setdefault(_name(group, type, name, tags), Timer())
        assert isinstance(timer, Timer)
        return timer

    def read(self, group: str, type: str, name: str, value: Callable[[], float], **tags: str) -> None:
        """A value that is asked for when somebody scrapes; it must be cheap. A name that counts makes it a counter."""
        self._metrics[_name(group, type, name, tags)] = value

    def remove(self, group: str, type: str, name: str, **tags: str) -> None:
        self._metrics.pop(_name(group, type, name, tags), None)

    def value(self, group: str, type: str, name: str, **tags: str) -> float:
        """Current value (count of meters and timers): for tests and status pages."""
        return _value(self._metrics[_name(group, type, name, tags)])

    def names(self) -> list[MetricName]:
        return sorted(self._metrics)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, list[tuple[MetricName, Instrument]]] = {}
        for name, instrument in sorted(self._metrics.items(), key=lambda item: item[0]):
            families.setdefault(name.prometheus, []).append((name, instrument))
        for family, members in families.items():
            labels = sorted({key.replace("-", "_") for name, _ in members for key, _ in name.tags})
            yield _family(family, labels, members)

    def exposition(self) -> bytes:
        """In Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def _name(group: str, type: str, name: str, tags: dict[str, str]) -> MetricName:
    # Kafka spells tags with dashes, which Python's keywords cannot.
    return MetricName(group, type, name, tuple((key.replace("_", "-"), value) for key, value in sorted(tags.items())))


def _value(instrument: Instrument) -> float:
    match instrument:
        case Meter() | Timer():
            return instrument.count
        case Gauge():
            return instrument.value
        case _:
            return instrument()


def _family(family: str, labels: list[str], members: list[tuple[MetricName, Instrument]]) -> Metric:
    def label_values(name: MetricName) -> list[str]:
        tags = {key.replace("-", "_"): value for key, value in name.tags}
        return [tags.get(label, "") for label in labels]

    first_name, first = members[0]
    help_text = f"{first_name.group}:type={first_name.type},name={first_name.name}"
    if first_name.is_counter:
        counters = CounterMetricFamily(family, help_text, labels=labels)
        for name, instrument in members:
            counters.add_metric(label_values(name), _value(instrument))
        return counters
    if isinstance(first, Timer):
        summaries = SummaryMetricFamily(family, help_text, labels=labels)
        for name, instrument in members:
            assert isinstance(instrument, Timer)
            values = label_values(name)
            summaries.add_metric(values, count_value=instrument.count, sum_value=instrument.sum_ms)
            for quantile, sample in instrument.quantiles().items():
                summaries.add_sample(
                    family, {**dict(zip(labels, values, strict=True)), "quantile": str(quantile)}, sample
                )
        return summaries
    gauges = GaugeMetricFamily(family, help_text, labels=labels)
    for name, instrument in members:
        gauges.add_metric(label_values(name), _value(instrument))
    return gauges
