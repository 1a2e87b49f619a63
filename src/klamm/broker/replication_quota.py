"""How fast throttled replicas may be filled: bytes per second, one limit for what we lead and one for what we follow.

A limit concerns only the replicas that the topic's configuration names (`*`, or `partition:broker`), and of these only
such that are not in sync yet: a follower in the ISR is never held back, else acks=all would wait for it. The rate is
taken over the last 11 seconds, as Kafka does, so a burst is paid for afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from klamm.model.ids import BrokerId
from klamm.model.ports import Clock

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
    """Of one direction."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.limit: float | None = None
        """Bytes per second; None: as fast as it goes."""
        self._samples: deque[list[float]] = deque()
        """[start, bytes] of each second in which something was recorded."""

    def record(self, size: int) -> None:
        now = self._clock.monotonic()
        self._forget(now)
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append([now, 0.0])
        self._samples[-1][1] += size

    def is_exceeded(self) -> bool:
        return self.limit is not None and self.rate() > self.limit

    def rate(self) -> float:
        now = self._clock.monotonic()
        self._forget(now)
        if not self._samples:
            return 0.0
        elapsed = max(now - self._samples[0][0], SAMPLE_SECONDS)
        return sum(size for _, size in self._samples) / elapsed

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] > SAMPLES * SAMPLE_SECONDS:
            self._samples.popleft()
