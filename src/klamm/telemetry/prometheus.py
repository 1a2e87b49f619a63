"""Metrics in Prometheus' text format. Imported at the first scrape.

The names are those of the JMX exporter's example configuration for Kafka, which operators' dashboards use: lower case;
a counter (`...PerSec`, `...-total`) without that ending and with `_total`; a timer as a summary with its quantiles.
klamm's own histograms stand beside these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from klamm.telemetry.metrics import Histogram, Instrument, MetricName, Timer, value_of

COUNTER_ENDINGS: Final = ("PerSec", "-total")


class SnapshotCollector(Collector):
    def __init__(self, snapshot: Iterable[tuple[MetricName, Instrument]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        families: dict[str, list[tuple[MetricName, Instrument]]] = {}
        for name, instrument in sorted(self._snapshot, key=itemgetter(0)):
            families.setdefault(spelled(name), []).append((name, instrument))
        for family, members in families.items():
            labels = sorted({key.replace("-", "_") for name, _ in members for key, _ in name.tags})
            yield _family(family, labels, members)


def exposition(
    snapshot: Iterable[tuple[MetricName, Instrument]],
    encode: Callable[[CollectorRegistry], bytes] = generate_latest,
    *others: Collector,
) -> bytes:
    """The metrics in Prometheus' text format, or as `encode` writes them, with those of `others`. Takes long, so it
    belongs in a thread."""
    registry = CollectorRegistry()
    for collector in (SnapshotCollector(snapshot), *others):
        registry.register(collector)
    return encode(registry)


def spelled(name: MetricName) -> str:
    """
    >>> spelled(MetricName("kafka.server", "ReplicaManager", "IsrShrinksPerSec"))
    'kafka_server_replicamanager_isrshrinks'
    """
    counted = name.name
    for ending in COUNTER_ENDINGS:
        counted = counted.removesuffix(ending)
    return re.sub(r"[^a-z0-9_]", "_", f"{name.group}_{name.type}_{counted}".lower())


def _is_counter(name: MetricName) -> bool:
    return name.name.endswith(COUNTER_ENDINGS)


def _family(family: str, labels: list[str], members: list[tuple[MetricName, Instrument]]) -> Metric:
    def label_values(name: MetricName) -> list[str]:
        tags = {key.replace("-", "_"): value for key, value in name.tags}
        return [tags.get(label, "") for label in labels]

    first_name, first = members[0]
    help_text = f"{first_name.group}:type={first_name.type},name={first_name.name}"
    if _is_counter(first_name):
        counters = CounterMetricFamily(family, help_text)
        for name, instrument in members:
            counters.add_sample(f"{family}_total", _labels(name), value_of(instrument))
        return counters
    if isinstance(first, Histogram):
        histograms = HistogramMetricFamily(family, help_text, labels=labels)
        for name, instrument in members:
            assert isinstance(instrument, Histogram)
            if instrument.timer.count:  # a client uses a dozen of fifty APIs
                buckets = instrument.cumulative()
                histograms.add_metric(label_values(name), buckets, instrument.timer.sum_ms / 1000)
        return histograms
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
    gauges = GaugeMetricFamily(family, help_text)
    for name, instrument in members:
        gauges.add_sample(family, _labels(name), value_of(instrument))
    return gauges


def _labels(name: MetricName) -> dict[str, str]:
    """Only its own: the total over all topics has no topic, as with Kafka's exporter."""
    return {key.replace("-", "_"): value for key, value in name.tags}
