"""The offsets that partitions have now. Pages do not wait long for them: without an answer they go on without."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from klamm.client.groups import GroupAdmin, LogRange
from klamm.dashboard.snapshot import PartitionRow
from klamm.dashboard.web import Web
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition

SECONDS: Final = 1.0

Ranges = dict[TopicPartition, LogRange]


async def record_ranges(web: Web, rows: Sequence[PartitionRow]) -> Ranges:
    """Only of partitions with a leader that answers: the others would take all the time."""
    observation = web.feed.current
    if observation.snapshot is None:
        return {}
    answering = set(observation.snapshot.registered) - observation.load.silent.keys()
    wanted = [TopicPartition(row.topic, row.number) for row in rows if row.leader in answering]
    try:
        async with asyncio.timeout(SECONDS), web.reads, web.access.brokers(timeout=SECONDS) as cluster:
            return await GroupAdmin(cluster).log_ranges(wanted)
    except (KlammError, OSError, TimeoutError):
        return {}
