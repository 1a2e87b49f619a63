"""Browse the records of a topic: by partition and offset, time, or key; as text, JSON or hex."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.client.cluster import ClusterClient
from klamm.client.partitioner import partition_of
from klamm.client.reader import EARLIEST, LATEST, offsets_at
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.browsing import (
    FORMATS,
    RECORDS_MAX,
    SHOWN_CHARACTERS,
    WHOLE_CHARACTERS,
    Browsed,
    browse,
    key_of,
    shown,
)
from klamm.dashboard.paging import natural
from klamm.dashboard.record_ranges import Ranges, record_ranges
from klamm.dashboard.snapshot import PartitionRow, TopicRow
from klamm.dashboard.web import web_of
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition

DEFAULT_RECORDS: Final = 20
TIMEOUT: Final = 5.0
PARTITIONS_SHOWN: Final = 100
"""Partitions of a topic that the page offers; others can be typed."""
STARTS: Final = ("newest", "oldest", "offset", "time")


async def page(request: Request) -> Response:
    web = web_of(request)
    snapshot = web.feed.current.snapshot
    if snapshot is None:
        return web.render(request, "waiting.html")
    query = request.query_params
    topic = snapshot.topics.get(query.get("topic", ""))
    form = query.get("as", "text") if query.get("as") in FORMATS else "text"
    found: Browsed | None = None
    partition: int | None = None
    ranges: Ranges = {}
    trouble = ""
    if topic is not None and topic.partitions:
        key = key_of(query["key"]) if query.get("key") else None
        try:
            partition = _chosen(topic, query.get("partition", ""), key)
            ranges = await record_ranges(web, topic.partitions[:PARTITIONS_SHOWN])
            if partition is None:
                partition = _fullest(topic, ranges)
            async with web.reads, web.access.brokers(timeout=TIMEOUT) as cluster:
                name = TopicPartition(topic.name, partition)
                limit = min(max(natural(query.get("limit"), DEFAULT_RECORDS), 1), RECORDS_MAX)
                first = await _first(cluster, name, query, limit if key is None else 0)
                found = await browse(cluster, name, first, limit, key)
        except (KlammError, OSError, TimeoutError) as error:
            trouble = str(error) or "no answer in time"
    elif query.get("topic"):
        trouble = f"there is no topic {query['topic']}"
    return web.render(
        request,
        "messages.html",
        topic=topic,
        partition=partition,
        found=found,
        ranges=ranges,
        partitions_shown=PARTITIONS_SHOWN,
        trouble=trouble,
        form=form,
        formats=FORMATS,
        starts=STARTS,
        start=_start(query),
        shown=shown,
        characters=WHOLE_CHARACTERS if "whole" in query else SHOWN_CHARACTERS,
    )


def _chosen(topic: TopicRow, text: str, key: bytes | None) -> int | None:
    """The given one, else the one where producers put the key."""
    numbers = [row.number for row in topic.partitions]
    if not text:
        return None if key is None else partition_of(key, len(numbers))
    wanted = natural(text, -1)
    if wanted not in numbers:
        raise ActionRefused(f"topic {topic.name} has partitions {min(numbers)} to {max(numbers)}")
    return wanted


def _fullest(topic: TopicRow, ranges: Ranges) -> int:
    """The one with the most records, so that the first look at a topic shows some; without any, the first."""

    def records(row: PartitionRow) -> int:
        found = ranges.get(TopicPartition(row.topic, row.number))
        return 0 if found is None else found.end - found.start

    return max(topic.partitions, key=records).number


def _start(query: Mapping[str, Any]) -> str:
    if query.get("from") in STARTS:
        return str(query["from"])
    return "oldest" if query.get("key") else "newest"


async def _first(cluster: ClusterClient, name: TopicPartition, query: Mapping[str, Any], back: int) -> int:
    match _start(query):
        case "oldest":
            return (await offsets_at(cluster, [name], EARLIEST))[name]
        case "offset":
            return natural(query.get("offset"), 0)
        case "time":
            found = (await offsets_at(cluster, [name], time_ms(query.get("time", ""))))[name]
            return found if found >= 0 else (await offsets_at(cluster, [name], LATEST))[name]
        case _:
            return max((await offsets_at(cluster, [name], LATEST))[name] - back, 0)


def time_ms(text: str) -> int:
    """UTC, as browsers send a date and time."""
    try:
        at = datetime.fromisoformat(text)
        return max(int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise ActionRefused(f"{text[:40]!r} is not a time; the form is 2026-01-31T12:00") from None
