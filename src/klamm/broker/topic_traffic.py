"""Records and bytes by topic, for the metrics. Only so many topics are told apart; the totals count all of them."""

from __future__ import annotations

from typing import Final

TOPICS_MAX: Final = 1_000
"""A scrape of more would be slow to make and slow to store."""


class Traffic:
    __slots__ = ("bytes_in", "bytes_out", "messages_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0


class TopicTraffic:
    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self.topics: dict[str, Traffic] = {}
        self._others = Traffic()

    def of(self, topic: str) -> Traffic:
        known = self.topics.get(topic)
        if known is not None:
            return known
        if len(self.topics) >= self._topics_max:
            return self._others
        return self.topics.setdefault(topic, Traffic())

    def forget(self, topic: str) -> None:
        """The topic has left this broker: its metrics end, and another one may take its place in the list."""
        self.topics.pop(topic, None)
