"""How fast throttled replicas may be filled, in bytes per second: one limit as leader and one as follower (KIP-73).

A limit applies only to the replicas that the topic's configuration names (`*`, or `partition:broker`), and only while
they are not in sync: throttling a follower in the ISR would delay acks=all. The rate is an average over the last 11
seconds, as in Kafka, so a burst is paid for afterwards.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from klamm.model.ids import BrokerId
from klamm.model.ports import Clock
from klamm.security.windowed_rate import WindowedRate

SAMPLES: Final = 11
SAMPLE_SECONDS: Final = 1.0
ALL_REPLICAS: Final = "*"


def is_named(throttled: Collection[str], partition: int, broker: BrokerId) -> bool:
    """
    >>> is_named(("0:1", "3:2"), 3, BrokerId(2)), is_named(("*",), 7, BrokerId(1)), is_named((), 0, BrokerId(1))
    (True, True, False)
    """
    return bool(throttled) and (ALL_REPLICAS in throttled or f"{partition}:{broker}" in throttled)


class ReplicationQuota:
    """The quota of one direction."""

    def __init__(self, clock: Clock) -> None:
        self._usage = WindowedRate(clock, SAMPLES, SAMPLE_SECONDS, least_seconds=SAMPLE_SECONDS)
        self.limit: float | None = None
        """Bytes per second. None means unlimited."""

    def record(self, size: int) -> None:
        self._usage.record(size)

    def is_exceeded(self) -> bool:
        return self.limit is not None and self.rate() > self.limit

    def rate(self) -> float:
        return self._usage.rate()
