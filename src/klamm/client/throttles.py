"""Sets and removes the throttles of moves on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.client.admin import BROKER, DELETE, SET, TOPIC, Admin
from klamm.model.config_levels import Source
from klamm.model.errors import ErrorCode, KafkaError

REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


async def set_throttles(
    admin: Admin, topics: Mapping[str, Mapping[str, str]], brokers: Mapping[int, Mapping[str, str]]
) -> None:
    """Rates first: replicas that are named before a rate is set would not be slowed down."""
    for broker, settings in brokers.items():
        await admin.alter_configs(BROKER, str(broker), {key: (SET, value) for key, value in settings.items()})
    for topic, settings in topics.items():
        await admin.alter_configs(TOPIC, topic, {key: (SET, value) for key, value in settings.items()})


async def throttled(admin: Admin) -> tuple[list[str], dict[int, int]]:
    """The topics that name throttled replicas, and the lower rate of each broker that has one."""
    topics: set[str] = set()
    names = await admin.topic_names()
    for key in REPLICAS:
        topics |= {topic for topic, value in (await admin.setting_of_topics(names, key)).items() if value}
    rates: dict[int, int] = {}
    for broker in sorted(await admin.brokers()):
        entries = await admin.config_entries(BROKER, str(broker), RATES)
        found = [int(entry.value or 0) for entry in entries.values() if entry.source is Source.BROKER]
        if found:
            rates[broker] = min(found)
    return sorted(topics), rates


async def remove_throttles(admin: Admin, topics: Iterable[str], brokers: Iterable[int]) -> None:
    for topic in topics:
        try:
            await admin.alter_configs(TOPIC, topic, dict.fromkeys(REPLICAS, (DELETE, None)))
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise  # a topic that was deleted meanwhile has no throttle any more
    for broker in brokers:
        await admin.alter_configs(BROKER, str(broker), dict.fromkeys(RATES, (DELETE, None)))
