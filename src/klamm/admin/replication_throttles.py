"""Which settings throttle which moves (KIP-73). Pure.

Replicas that send (all current ones, because any may lead) and replicas that receive (the new ones) are named in
topic settings; the rates are settings of the brokers. Other traffic between brokers is not slowed down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from klamm.model.ids import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"


class Throttles(NamedTuple):
    topics: dict[str, dict[str, str]]
    brokers: dict[int, dict[str, str]]


def throttles_for(
    targets: Mapping[TopicPartition, Sequence[int]], current: Mapping[TopicPartition, Sequence[int]], rate: int
) -> Throttles:
    """
    >>> t = TopicPartition("t", 0)
    >>> throttles_for({t: [1, 3]}, {t: [1, 2]}, 1000).topics["t"][FOLLOWER_REPLICAS]
    '0:3'
    """
    senders: dict[str, list[str]] = {}
    receivers: dict[str, list[str]] = {}
    brokers: set[int] = set()
    for name in sorted(targets):
        new = [broker for broker in targets[name] if broker not in current.get(name, ())]
        if not new:
            continue
        senders.setdefault(name.topic, []).extend(f"{name.partition}:{broker}" for broker in current.get(name, ()))
        receivers.setdefault(name.topic, []).extend(f"{name.partition}:{broker}" for broker in new)
        brokers.update(new, current.get(name, ()))
    rates = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
    return Throttles(
        {
            topic: {LEADER_REPLICAS: ",".join(senders[topic]), FOLLOWER_REPLICAS: ",".join(receivers[topic])}
            for topic in receivers
        },
        {broker: dict(rates) for broker in sorted(brokers)},
    )
