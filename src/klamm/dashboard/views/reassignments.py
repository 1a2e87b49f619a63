"""Reassignments: make a plan, see what it changes, start it throttled, watch it, cancel it."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.admin.balancing.load import Goals
from klamm.client.admin import Admin
from klamm.client.throttles import remove_throttles
from klamm.dashboard import pictures, reassigning
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.paging import natural, page_of
from klamm.dashboard.web import Fields, required, web_of, whole_number
from klamm.model.ids import TopicPartition
from klamm.model.wording import count

HERE: Final = "/reassignments"
TIMEOUT: Final = 60.0
"""A plan for a large cluster reads the sizes of all its replicas."""
DEFAULT_RATE: Final = 50_000_000
BROKERS_MAX: Final = 1_000


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    snapshot, load = observation.snapshot, observation.load
    if snapshot is None:
        return web.render(request, "waiting.html")
    moving = snapshot.moving()
    kept = web.plans.get(request.query_params.get("plan", ""))
    copied, total = sum(m.copied_bytes for m in load.moves), sum(m.total_bytes for m in load.moves)
    return web.render(
        request,
        "reassignments.html",
        moving=page_of(moving, request.query_params.get("page")),
        progress={move.name: move for move in load.moves},
        name_of=lambda row: TopicPartition(row.topic, row.number),
        copied=copied,
        total=total,
        share=100 * copied / total if total else 0,
        rate=load.move_rate,
        bar=pictures.bar,
        plan=kept,
        changes=page_of(kept.plan.changes if kept else (), request.query_params.get("changes")),
        most_bytes=max((load.size_bytes for load in kept.plan.after), default=0) if kept else 0,
        default_rate=DEFAULT_RATE,
        registered=frozenset(snapshot.registered),
    )


async def make(request: Request) -> Response:
    web = web_of(request)
    made: list[str] = []

    async def action(fields: Fields, cluster_id: str) -> str:
        goals = _goals(fields)
        async with web.examinations, web.access.brokers(cluster_id, timeout=TIMEOUT) as cluster:
            planned, document, at_ms = await reassigning.make_plan(cluster, goals)
        if not planned.changes:
            raise ActionRefused(f"nothing to do: {'; '.join(planned.reasons)}")
        made.append(web.plans.keep(planned, document, at_ms).name)
        return f"a plan for {count(len(planned.changes), 'partition')}; nothing is moved yet"

    answer = await web.act(request, HERE, action)
    if made and "location" in answer.headers:
        answer.headers["location"] = f"{HERE}?plan={made[0]}"
    return answer


def _goals(fields: Fields) -> Goals:
    drained = [part for part in fields.get("drain", "").replace(",", " ").split() if part]
    if len(drained) > BROKERS_MAX or any(natural(part, -1) < 0 for part in drained):
        raise ActionRefused("nothing was done: brokers to drain are numbers with commas between them")
    factor = fields.get("replication_factor", "").strip()
    return Goals(
        drained=frozenset(map(int, drained)),
        replication_factor=whole_number(fields, "replication_factor", least=1, most=100) if factor else None,
        is_forced="force" in fields,
    )


async def start(request: Request) -> Response:
    web = web_of(request)

    async def action(fields: Fields, cluster_id: str) -> str:
        kept = web.plans.get(required(fields, "plan"))
        if kept is None:
            raise ActionRefused("nothing was done: this plan is no longer known, make it again")
        rate = whole_number(fields, "rate", least=1, most=10**12) if fields.get("rate", "").strip() else None
        async with web.access.brokers(cluster_id, timeout=TIMEOUT) as cluster:
            number = await reassigning.start(cluster, kept, rate)
        web.plans.forget(kept.name)
        if rate is not None:
            topics = {change.topic for change in kept.plan.changes}
            brokers = {broker for change in kept.plan.changes for broker in (*change.before, *change.after)}
            watching = reassigning.unthrottle_when_done(web.feed, web.access, cluster_id, topics, brokers)
            web.keep_task(asyncio.create_task(watching, name="unthrottle"))
        return f"{count(number, 'move')} started"

    return await web.act(request, HERE, action)


async def cancel(request: Request) -> Response:
    web = web_of(request)

    async def action(_fields: Fields, cluster_id: str) -> str:
        async with web.access.brokers(cluster_id, timeout=TIMEOUT) as cluster:
            number = await reassigning.cancel(cluster)
        return f"{count(number, 'move')} cancelled"

    return await web.act(request, HERE, action)


async def unthrottle(request: Request) -> Response:
    web = web_of(request)

    async def action(_fields: Fields, cluster_id: str) -> str:
        snapshot = web.feed.current.snapshot
        assert snapshot is not None, "a page was made from it"
        async with web.access.brokers(cluster_id, timeout=TIMEOUT) as cluster:
            await remove_throttles(Admin(cluster), snapshot.throttled_topics, snapshot.throttles)
        return "the throttles were removed"

    return await web.act(request, HERE, action)
