"""Where the time of requests goes, by API, under the names of Kafka's request metrics.

Queue: from the last byte of the request until a handler has it. Local: for how long it held the loop. Remote: for how
long it waited, for other replicas or for records to arrive. Send: until the answer is handed to the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.model.ports import Clock
from klamm.telemetry.metrics import MetricsRegistry

PARTS: Final = {
    "RequestQueueTimeMs": "queue",
    "LocalTimeMs": "local",
    "RemoteTimeMs": "remote",
    "ResponseSendTimeMs": "send",
    "TotalTimeMs": "total",
}
"""Kafka's name of each, and the label of the histogram beside it."""


class RequestTimes:
    def __init__(self, metrics: MetricsRegistry, names: Mapping[int, str], clock: Clock) -> None:
        self.now = clock.instant
        """The clock of the parts: most of them are far below a millisecond."""
        self._timers = {
            key: tuple(metrics.bucket_timer("kafka.network", "RequestMetrics", part, request=name) for part in PARTS)
            for key, name in names.items()
        }
        for key, timers in self._timers.items():
            for part, timer in zip(PARTS.values(), timers, strict=True):
                metrics.histogram("klamm", "request", "seconds", timer, part=part, request=names[key])

    def record(self, key: int, queue: float, local: float, remote: float, send: float) -> None:
        """In seconds. Called for every request."""
        timers = self._timers.get(key)
        if timers is None:
            return  # not served: its connection is closed
        queued, held, waited, sent, total = timers
        queued.update(queue * 1000)
        held.update(local * 1000)
        waited.update(remote * 1000)
        sent.update(send * 1000)
        total.update((queue + local + remote + send) * 1000)
