"""The average rate of the last seconds, from samples of equal length: how Kafka's quotas measure."""

from __future__ import annotations

from collections import deque

from klamm.model.ports import Clock


class WindowedRate:
    def __init__(self, clock: Clock, samples: int, sample_seconds: float, *, least_seconds: float) -> None:
        """The rate is computed over at least `least_seconds`, so that a first burst does not count as a high rate."""
        self._clock = clock
        self._kept_seconds = samples * sample_seconds
        self._sample_seconds = sample_seconds
        self._least_seconds = least_seconds
        self._samples: deque[list[float]] = deque()
        """Start and amount of each sample that has any."""

    def record(self, amount: float) -> None:
        now = self._clock.monotonic()
        self._forget(now)
        if not self._samples or now - self._samples[-1][0] >= self._sample_seconds:
            self._samples.append([now, 0.0])
        self._samples[-1][1] += amount

    def rate(self) -> float:
        """Per second."""
        seconds = self.measured_seconds()
        return sum(amount for _, amount in self._samples) / seconds if self._samples else 0.0

    def measured_seconds(self) -> float:
        now = self._clock.monotonic()
        self._forget(now)
        return max(now - self._samples[0][0], self._least_seconds) if self._samples else self._least_seconds

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] > self._kept_seconds:
            self._samples.popleft()
