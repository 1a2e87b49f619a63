"""Topics are told apart up to a limit, so that the metrics of a broker stay bounded."""

from __future__ import annotations

from klamm.broker.topic_traffic import TopicTraffic


def test_topics_beyond_the_limit_are_not_listed() -> None:
    traffic = TopicTraffic(topics_max=2)
    for topic in ("a", "b", "c", "a", "d"):
        traffic.of(topic).messages_in += 1
    assert {topic: found.messages_in for topic, found in traffic.topics.items()} == {"a": 2, "b": 1}
