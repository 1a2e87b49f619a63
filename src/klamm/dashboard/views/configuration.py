"""Settings: where brokers differ, all settings of one broker, and those of a topic."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.admin.config_diff import differences
from klamm.admin.config_words import SOURCES, in_units
from klamm.client.admin import BROKER, TOPIC, Admin
from klamm.client.cluster import ClusterClient
from klamm.dashboard.paging import natural, page_of
from klamm.dashboard.web import web_of
from klamm.model.config_levels import ConfigEntry, Source
from klamm.model.errors import KlammError

TIMEOUT: Final = 5.0
BROKERS_MAX: Final = 50
ROWS: Final = 200


async def page(request: Request) -> Response:
    web = web_of(request)
    snapshot = web.feed.current.snapshot
    if snapshot is None:
        return web.render(request, "waiting.html")
    query = request.query_params
    topic, broker = query.get("topic", ""), natural(query.get("broker"), -1)
    wanted = query.get("q", "").strip().lower()
    trouble: list[str] = []
    rows: list[ConfigEntry] = []
    compared: dict[int, dict[str, str | None]] = {}
    try:
        async with web.reads, web.access.brokers(timeout=TIMEOUT) as cluster:
            if topic:
                rows = await _entries(cluster, TOPIC, topic)
            elif broker >= 0:
                rows = await _entries(cluster, BROKER, str(broker))
            else:
                compared = await _of_all(cluster, snapshot.registered[:BROKERS_MAX], trouble)
    except (KlammError, OSError, TimeoutError) as error:
        trouble.append(str(error) or "no answer in time")
    return web.render(
        request,
        "configuration.html",
        topic=topic,
        broker=broker,
        registered=snapshot.registered,
        compared=sorted(compared),
        differences=differences(compared),
        page=page_of([row for row in rows if wanted in row.key.lower()], query.get("page"), ROWS),
        trouble=trouble,
        sources=SOURCES,
        in_units=in_units,
    )


async def _entries(cluster: ClusterClient, kind: int, name: str) -> list[ConfigEntry]:
    """What someone has set comes first."""
    found = (await Admin(cluster).config_entries(kind, name)).values()
    return sorted(found, key=lambda entry: (entry.source is Source.BUILT_IN, entry.key))


async def _of_all(cluster: ClusterClient, brokers: list[int], trouble: list[str]) -> dict[int, dict[str, str | None]]:
    """A broker that does not answer concerns only itself."""
    admin = Admin(cluster)
    answers = await asyncio.gather(
        *(admin.describe_configs(BROKER, str(broker)) for broker in brokers), return_exceptions=True
    )
    found: dict[int, dict[str, str | None]] = {}
    for broker, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, dict):
            found[broker] = answer
        elif isinstance(answer, (KlammError, OSError, TimeoutError)):
            trouble.append(f"broker {broker}: {answer}")
        else:
            raise answer
    return found
