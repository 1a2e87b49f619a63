"""All topics with search and filters, one topic with its partitions; create and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.client.admin import Admin, NewTopic
from klamm.dashboard import pictures
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.changes import summarized
from klamm.dashboard.paging import page_of
from klamm.dashboard.record_ranges import record_ranges
from klamm.dashboard.snapshot import PartitionHealth, PartitionRow, TopicRow
from klamm.dashboard.web import Fields, required, segment, web_of, whole_number
from klamm.model.ids import INTERNAL_TOPICS
from klamm.model.wording import count

PARTITIONS_MAX: Final = 10_000
CHANGES_SHOWN: Final = 20

ROW_STATES: Final[dict[str, Callable[[PartitionRow], bool]]] = {
    "offline": lambda row: row.health is PartitionHealth.OFFLINE,
    "under-min-isr": lambda row: row.health is PartitionHealth.UNDER_MIN_ISR,
    "under-replicated": lambda row: row.health >= PartitionHealth.UNDER_REPLICATED,
    "not-preferred": lambda row: not row.is_led_by_preferred,
    "moving": lambda row: row.assignment.is_being_reassigned,
}
SORTS: Final = ("name", "partitions", "bytes", "unhealthy")


async def all_topics(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    query = request.query_params
    wanted, state, sort = query.get("q", "").strip().lower(), query.get("state", ""), query.get("sort", "name")
    snapshot = observation.snapshot if state else observation.shown
    if snapshot is None:
        return web.render(request, "waiting.html")
    sizes = observation.load.topics
    found = [
        topic
        for topic in snapshot.topics.values()
        if (not wanted or wanted in topic.name.lower()) and _has_state(topic, state)
    ]
    if sort != "name":
        orders: dict[str, Callable[[TopicRow], int]] = {
            "partitions": lambda topic: len(topic.partitions),
            "bytes": lambda topic: sizes.get(topic.name, 0),
            "unhealthy": lambda topic: topic.unhealthy,
        }
        found.sort(key=orders.get(sort, lambda topic: 0), reverse=True)
    return web.render(
        request,
        "topics.html",
        page=page_of(found, query.get("page")),
        sizes=sizes,
        states=[*ROW_STATES, "deleting", "internal"],
        state=state,
        sorts=SORTS,
        sort=sort,
        internal=INTERNAL_TOPICS,
    )


def _has_state(topic: TopicRow, state: str) -> bool:
    if not state:
        return True
    if state == "deleting":
        return topic.is_being_deleted
    if state == "internal":
        return topic.name in INTERNAL_TOPICS
    judge = ROW_STATES.get(state)
    return judge is not None and any(map(judge, topic.partitions))


async def one_topic(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    snapshot, name = observation.snapshot, request.path_params["topic"]
    if snapshot is None:
        return web.render(request, "waiting.html")
    topic = snapshot.topics.get(name)
    if topic is None:
        return web.render(request, "not_found.html", 404)
    state = request.query_params.get("state", "")
    judge = ROW_STATES.get(state)
    sizes = observation.load.sizes
    rows = [row for row in topic.partitions if judge is None or judge(row)]
    page = page_of(rows, request.query_params.get("page"))
    ranges = await record_ranges(web, page.items)
    return web.render(
        request,
        "topic.html",
        topic=topic,
        page=page,
        ranges=ranges,
        records=sum(found.end - found.start for found in ranges.values()) if len(ranges) == len(page.items) else None,
        states=list(ROW_STATES),
        state=state,
        sizes=sizes,
        registered=frozenset(snapshot.registered),
        total_bytes=observation.load.topics.get(name, 0),
        bar=pictures.bar,
        changes=summarized((entry for entry in observation.entries if entry.topic == name), CHANGES_SHOWN),
        is_internal=name in INTERNAL_TOPICS,
    )


async def create(request: Request) -> Response:
    web = web_of(request)

    async def action(fields: Fields, cluster_id: str) -> str:
        name = required(fields, "name")
        partitions = whole_number(fields, "partitions", least=1, most=PARTITIONS_MAX)
        replicas = whole_number(fields, "replication_factor", least=1, most=100)
        async with web.access.brokers(cluster_id) as cluster:
            outcomes = await Admin(cluster).create_topics({name: NewTopic(partitions, replicas)})
        error = outcomes.get(name)
        if error is not None:
            raise ActionRefused(f"topic {name} was not created: {error.message or error.code.name}")
        return f"topic {name} was created with {count(partitions, 'partition')}"

    return await web.act(request, "/topics", action)


async def grow(request: Request) -> Response:
    web, name = web_of(request), request.path_params["topic"]

    async def action(fields: Fields, cluster_id: str) -> str:
        if name in INTERNAL_TOPICS:
            raise ActionRefused(f"topic {name} is internal and must keep its partitions")
        partitions = whole_number(fields, "partitions", least=1, most=PARTITIONS_MAX)
        async with web.access.brokers(cluster_id) as cluster:
            outcomes = await Admin(cluster).create_partitions({name: partitions})
        error = outcomes.get(name)
        if error is not None:
            raise ActionRefused(f"topic {name} was not grown: {error.message or error.code.name}")
        return f"topic {name} has {count(partitions, 'partition')} now"

    return await web.act(request, f"/topics/{segment(name)}", action)


async def delete(request: Request) -> Response:
    web, name = web_of(request), request.path_params["topic"]

    async def action(fields: Fields, cluster_id: str) -> str:
        if name in INTERNAL_TOPICS:
            raise ActionRefused(f"topic {name} is internal and must not be deleted")
        if fields.get("name", "") != name:
            raise ActionRefused(f"nothing was done: type {name} to delete it")
        async with web.access.brokers(cluster_id) as cluster:
            outcomes = await Admin(cluster).delete_topics([name])
        error = outcomes.get(name)
        if error is not None:
            raise ActionRefused(f"topic {name} was not deleted: {error.message or error.code.name}")
        return f"topic {name} is being deleted"

    return await web.act(request, f"/topics?q={segment(name)}", action)
