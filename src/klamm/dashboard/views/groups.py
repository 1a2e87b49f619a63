"""Consumer groups: all of them, one with its lag over time, and a reset that is shown before it is done."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.admin.group_lag import Kind, PlannedReset, Ranges, ResetTo, check_inactive, lags, plan_reset, total_lag
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin, ListedGroup
from klamm.client.reader import offsets_at
from klamm.dashboard import pictures
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.group_lags import LagSample
from klamm.dashboard.paging import Page, page_of
from klamm.dashboard.views.messages import time_ms
from klamm.dashboard.web import Fields, required, segment, web_of
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition
from klamm.model.wording import count

TIMEOUT: Final = 5.0
ROWS: Final = 50
"""Groups on a page. Each costs a request, for its offsets."""


async def all_groups(request: Request) -> Response:
    web = web_of(request)
    if web.feed.current.snapshot is None:
        return web.render(request, "waiting.html")
    query, trouble = request.query_params, ""
    page: Page[ListedGroup] = page_of([], 1)
    lag: dict[str, int] = {}
    try:
        async with web.reads, web.access.brokers(timeout=TIMEOUT) as cluster:
            groups = GroupAdmin(cluster)
            wanted = query.get("q", "").strip().lower()
            shown = [group for group in await groups.list_all() if wanted in group.name.lower()]
            page = page_of(shown, query.get("page"), ROWS)
            lag = await _lag_of([group.name for group in page.items], groups)
    except (KlammError, OSError, TimeoutError) as error:
        trouble = str(error) or "no answer in time"
    most = max(lag.values(), default=0)
    return web.render(request, "groups.html", page=page, lag=lag, most_lag=most, bar=pictures.bar, trouble=trouble)


async def _lag_of(names: Sequence[str], groups: GroupAdmin) -> dict[str, int]:
    """The lag of each group. The ends of the logs are asked for once, because groups often read the same topics."""
    offsets = [await groups.offsets(name) for name in names]
    ranges = await groups.log_ranges({place for committed in offsets for place in committed})
    return {name: total_lag(lags(committed, ranges)) for name, committed in zip(names, offsets, strict=True)}


async def one_group(request: Request) -> Response:
    web, name = web_of(request), request.path_params["group"]
    if web.feed.current.snapshot is None:
        return web.render(request, "waiting.html")
    try:
        async with web.reads, web.access.brokers(timeout=TIMEOUT) as cluster:
            groups = GroupAdmin(cluster)
            described = await groups.describe(name)
            committed = await groups.offsets(name)
            readers = described.member_of()
            entries = lags(committed, await groups.log_ranges({*committed, *readers}), readers)
    except (KlammError, OSError, TimeoutError) as error:
        return web.render(request, "group.html", name=name, group=None, trouble=str(error) or "no answer in time")
    if described.state == "Dead" and not committed:
        return web.render(request, "not_found.html", 404)
    now_ms = int(time.time() * 1000)
    samples = web.groups.add(name, LagSample(now_ms, total_lag(entries)))
    planned = web.groups.reset(name, request.query_params.get("reset", ""))
    return web.render(
        request,
        "group.html",
        name=name,
        group=described,
        trouble="",
        page=page_of(entries, request.query_params.get("page")),
        lag=total_lag(entries),
        most_lag=max((entry.lag or 0 for entry in entries), default=0),
        bar=pictures.bar,
        expired=sum(entry.expired for entry in entries),
        samples=samples,
        spark=pictures.sparkline([float(sample.lag) for sample in samples], "lag over time"),
        topics=sorted({entry.partition.topic for entry in entries}),
        kinds=list(Kind),
        planned=planned,
        skipped=sum(entry.skipped for entry in planned or ()),
        again=sum(entry.again for entry in planned or ()),
        reset=request.query_params.get("reset", ""),
    )


async def plan(request: Request) -> Response:
    """Show what a reset would do."""
    web, name = web_of(request), request.path_params["group"]
    back = f"/groups/{segment(name)}"
    kept: list[str] = []

    async def action(fields: Fields, cluster_id: str) -> str:
        to = _target(fields)
        topic = fields.get("topic", "")
        async with web.access.brokers(cluster_id) as cluster:
            groups = GroupAdmin(cluster)
            committed = {at: o for at, o in (await groups.offsets(name)).items() if not topic or at.topic == topic}
            ranges = await groups.log_ranges(committed)
            at_time = await _at_time(cluster, ranges, to)
        planned = plan_reset(to, ranges, {at: committed[at] for at in ranges}, at_time)
        if not planned:
            raise ActionRefused("nothing to reset: the group has no commits for existing partitions")
        kept.append(web.groups.keep_reset(name, planned))
        return "this is what the reset would do; nothing is changed yet"

    answer = await web.act(request, back, action)
    if kept and "location" in answer.headers:
        answer.headers["location"] = f"{back}?reset={kept[0]}#planned"
    return answer


async def execute(request: Request) -> Response:
    web, name = web_of(request), request.path_params["group"]

    async def action(fields: Fields, cluster_id: str) -> str:
        planned = web.groups.reset(name, required(fields, "reset"))
        if planned is None:
            raise ActionRefused("nothing was done: this plan is no longer known, make it again")
        async with web.access.brokers(cluster_id) as cluster:
            groups = GroupAdmin(cluster)
            described = await groups.describe(name)
            check_inactive(name, described.state, len(described.members))
            _check_unchanged(planned, await groups.offsets(name))
            outcomes = await groups.commit(name, {entry.partition: entry.after for entry in planned})
        refused = [f"{at}: {error.code.name}" for at, error in sorted(outcomes.items()) if error is not None]
        if refused:
            raise ActionRefused(f"not all offsets were set: {', '.join(refused[:5])}")
        return f"the offsets of {count(len(planned), 'partition')} were set"

    return await web.act(request, f"/groups/{segment(name)}", action)


def _target(fields: Fields) -> ResetTo:
    try:
        kind = Kind(fields.get("to", ""))
        if kind is Kind.TIME:
            return ResetTo(kind, time_ms(fields.get("time", "")))
        if kind in (Kind.OFFSET, Kind.SHIFT):
            return ResetTo(kind, int(required(fields, "value")[:20]))
        return ResetTo(kind)
    except ValueError:
        raise ActionRefused("nothing was done: choose where to, and give a whole number where one is needed") from None


async def _at_time(cluster: ClusterClient, ranges: Ranges, to: ResetTo) -> dict[TopicPartition, int]:
    return await offsets_at(cluster, ranges, to.value) if to.kind is Kind.TIME else {}


def _check_unchanged(planned: Iterable[PlannedReset], committed: dict[TopicPartition, int]) -> None:
    for entry in planned:
        if committed.get(entry.partition) != entry.before:
            raise ActionRefused(f"nothing was done: the commit of {entry.partition} has changed, make the plan again")
