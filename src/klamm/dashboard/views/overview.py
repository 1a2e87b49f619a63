"""The overview: health in one sentence, what is wrong and what cures it, and the cluster in pictures."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.dashboard import pictures
from klamm.dashboard.changes import summarized
from klamm.dashboard.snapshot import PartitionHealth
from klamm.dashboard.web import web_of
from klamm.model.ids import INTERNAL_TOPICS

CHANGES_SHOWN: Final = 8


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    snapshot, load = observation.shown, observation.load
    if snapshot is None:
        return web.render(request, "waiting.html")
    brokers = list(snapshot.brokers.values())
    rate = load.total_rate
    return web.render(
        request,
        "overview.html",
        brokers=brokers,
        most_leaders=max((broker.leaders for broker in brokers), default=0),
        sizes={broker.id: load.size_of(broker.id) for broker in brokers},
        most_bytes=max((load.size_of(broker.id) or 0 for broker in brokers), default=0),
        bar=pictures.bar,
        heat=web.heat_map(snapshot),
        rate=rate[-1] if rate else None,
        spark=pictures.sparkline(rate, "bytes written per second"),
        internal=sum(name in INTERNAL_TOPICS for name in snapshot.topics),
        in_sync=sum(snapshot.health.get(kind, 0) for kind in (PartitionHealth.IN_SYNC, PartitionHealth.MOVING)),
        kinds=[(kind, snapshot.health.get(kind, 0)) for kind in PartitionHealth],
        changes=summarized(observation.entries, CHANGES_SHOWN),
    )
