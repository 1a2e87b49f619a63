"""All brokers, and one broker with its directories and partitions."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.dashboard import pictures
from klamm.dashboard.changes import summarized
from klamm.dashboard.paging import page_of
from klamm.dashboard.snapshot import ClusterSnapshot, PartitionHealth, PartitionRow
from klamm.dashboard.web import web_of

CHANGES_SHOWN: Final = 20


async def all_brokers(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    if observation.shown is None:
        return web.render(request, "waiting.html")
    load = observation.load
    brokers = list(observation.shown.brokers.values())
    return web.render(
        request,
        "brokers.html",
        brokers=brokers,
        sizes={broker.id: load.size_of(broker.id) for broker in brokers},
        most_bytes=max((load.size_of(broker.id) or 0 for broker in brokers), default=0),
        most_leaders=max((broker.leaders for broker in brokers), default=0),
        silent=load.silent,
        has_racks=any(broker.rack for broker in brokers),
        rates={broker: series[-1] for broker, series in load.rates.items() if series},
        sparks={b: pictures.sparkline(series, f"bytes per second of broker {b}") for b, series in load.rates.items()},
        bar=pictures.bar,
    )


async def one_broker(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    snapshot, number = observation.snapshot, request.path_params["broker"]
    if snapshot is None:
        return web.render(request, "waiting.html")
    broker = snapshot.brokers.get(number)
    if broker is None:
        return web.render(request, "not_found.html", 404)
    wanted = request.query_params.get("show", "leads")
    rows = _rows(snapshot, number, wanted)
    sample = observation.load.brokers.get(number)
    rates = observation.load.rates.get(number, ())
    return web.render(
        request,
        "broker.html",
        broker=broker,
        wanted=wanted,
        page=page_of(rows, request.query_params.get("page")),
        problem=sample.problem if sample else "",
        directories=sample.directories if sample else (),
        sizes=observation.load.sizes,
        spark=pictures.sparkline(rates, "bytes written per second"),
        rate=rates[-1] if rates else None,
        bar=pictures.bar,
        changes=summarized((entry for entry in observation.entries if number in entry.brokers), CHANGES_SHOWN),
    )


def _rows(snapshot: ClusterSnapshot, broker: int, wanted: str) -> list[PartitionRow]:
    """The partitions that it leads, those of which it has a replica, or those of which its replica is not in sync."""
    if wanted == "missing":
        return [row for row in snapshot.rows(PartitionHealth.UNDER_REPLICATED) if broker in row.missing]
    if wanted == "all":
        return [row for row in snapshot.rows() if broker in row.assignment.replicas]
    return [row for row in snapshot.rows() if row.leader == broker]
