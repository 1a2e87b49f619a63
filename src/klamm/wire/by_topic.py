"""Groups partitions by topic, as Kafka's messages list them, for all of our encoders and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from klamm.model.ids import TopicPartition

T = TypeVar("T")


def by_topic(entries: Iterable[T], partition_of: Callable[[T], TopicPartition]) -> dict[str, list[T]]:
    """Each topic once, with its entries. Topics and entries keep the order in which they first appear.

    >>> by_topic([("a", 1), ("b", 0), ("a", 0)], lambda pair: TopicPartition(*pair))
    {'a': [('a', 1), ('a', 0)], 'b': [('b', 0)]}
    """
    topics: dict[str, list[T]] = {}
    for entry in entries:
        topic = partition_of(entry).topic
        group = topics.get(topic)
        if group is None:
            topics[topic] = [entry]
        else:
            group.append(entry)
    return topics
