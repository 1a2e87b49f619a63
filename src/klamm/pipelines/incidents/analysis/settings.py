"""What the logs say about the configuration: min.insync.replicas of each topic, session timeout, replica lag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from klamm.pipelines.incidents.record import Record

SESSION_TIMEOUT_MS = 18_000
REPLICA_LAG_MS = 30_000
MIN_ISR = 1
"""Kafka's defaults, used where no log says otherwise."""


class Settings(NamedTuple):
    session_timeout_ms: int
    replica_lag_ms: int
    min_isr: dict[str, int]
    """The values of the topics that the logs tell."""
    default_min_isr: int
    assumed: tuple[str, ...]
    """Settings that no log names."""

    @property
    def session_is_known(self) -> bool:
        return not any(setting.startswith("zookeeper.session.timeout.ms") for setting in self.assumed)

    def min_isr_of(self, topic: str) -> int:
        return self.min_isr.get(topic, self.default_min_isr)


def read_settings(records: Iterable[Record]) -> Settings:
    dumped: dict[str, int] = {}
    min_isr: dict[str, int] = {}
    for record in records:
        if record.kind == "config":
            for setting in (record.text or "").split(","):
                key, _, value = setting.partition("=")
                if value.isdigit():
                    dumped[key] = int(value)
        elif record.kind in ("min.isr", "append.refused") and record.topic is not None and record.number is not None:
            min_isr[record.topic] = record.number
    defaults = {
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        "replica.lag.time.max.ms": REPLICA_LAG_MS,
        "min.insync.replicas": MIN_ISR,
    }
    values = {key: dumped.get(key, default) for key, default in defaults.items()}
    assumed = tuple(f"{key}={default}" for key, default in defaults.items() if key not in dumped)
    session, lag, default_min_isr = values.values()
    return Settings(session, lag, min_isr, default_min_isr, assumed)
