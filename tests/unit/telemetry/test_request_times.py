"""The parts of a request's time, under the names of Kafka's request metrics."""

from __future__ import annotations

from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.telemetry.request_times import RequestTimes


def test_the_parts_of_a_request_add_up() -> None:
    metrics = MetricsRegistry()
    times = RequestTimes(metrics, {0: "Produce", 1: "Fetch"})
    times.record(0, 0.001, 0.002, 0.004, 0.008)
    times.record(99, 1.0, 1.0, 1.0, 1.0)  # not served
    text = exposition(metrics).decode()
    expected = {"requestqueue": 1.0, "local": 2.0, "remote": 4.0, "responsesend": 8.0, "total": 15.0}
    for part, milliseconds in expected.items():
        name = f"kafka_network_requestmetrics_{part}timems"
        assert f'{name}_sum{{request="Produce"}} {milliseconds}' in text
        assert f'{name}_count{{request="Produce"}} 1.0' in text
        assert f'{name}_count{{request="Fetch"}} 0.0' in text
