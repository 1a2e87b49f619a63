"""The parts of a request's time, under the names of Kafka's request metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from klamm.net.clock import SystemClock
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.telemetry.request_times import RequestTimes
from klamm.wire.slices import finish


def test_the_parts_of_a_request_add_up() -> None:
    metrics = MetricsRegistry()
    times = RequestTimes(metrics, {0: "Produce", 1: "Fetch"}, SystemClock())
    times.record(0, 0.001, 0.002, 0.004, 0.008)
    times.record(99, 1.0, 1.0, 1.0, 1.0)  # not served
    text = exposition(finish(metrics.snapshot())).decode()
    expected = {"requestqueue": 1.0, "local": 2.0, "remote": 4.0, "responsesend": 8.0, "total": 15.0}
    for part, milliseconds in expected.items():
        name = f"kafka_network_requestmetrics_{part}timems"
        assert f'{name}_sum{{request="Produce"}} {milliseconds}' in text
        assert f'{name}_count{{request="Produce"}} 1.0' in text
        assert f'{name}_count{{request="Fetch"}} 0.0' in text


def test_histograms_of_the_parts_by_api() -> None:
    metrics = MetricsRegistry()
    times = RequestTimes(metrics, {0: "Produce", 1: "Fetch"}, SystemClock())
    for remote in (0.0, 0.004, 0.005, 0.2, 60.0):
        times.record(0, 0.0001, 0.002, remote, 0.0)
    families = {
        family.name: family
        for family in text_string_to_metric_families(exposition(finish(metrics.snapshot())).decode())
    }
    family = families["klamm_request_seconds"]
    assert family.type == "histogram"
    waited = [sample for sample in family.samples if sample.labels["part"] == "remote"]
    buckets = {sample.labels["le"]: sample.value for sample in waited if sample.name.endswith("_bucket")}
    within = {"0.00025": 1, "0.0025": 1, "0.005": 3, "0.1": 3, "0.25": 4, "30.0": 4, "+Inf": 5}
    assert {bound: buckets[bound] for bound in within} == within, "a bound belongs to its bucket"
    assert {sample.name.rpartition("_")[2]: sample.value for sample in waited[-2:]} == {"count": 5, "sum": 60.209}
    assert {sample.labels["request"] for sample in family.samples} == {"Produce"}, "only APIs that were used"
    assert {sample.labels["part"] for sample in family.samples} == {"queue", "local", "remote", "send", "total"}
