"""The doctor's findings: of every look, and on request with the ACLs, which cost a request per znode."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.admin.doctor.doctor import examine
from klamm.admin.doctor.finding import Finding, Severity
from klamm.dashboard.paging import page_of
from klamm.dashboard.web import web_of
from klamm.model.errors import KlammError
from klamm.zookeeper.kafka_tree_reader import read_kafka_tree

TIMEOUT: Final = 120.0
TAGS: Final = {Severity.CRITICAL: "h4", Severity.ERROR: "h3", Severity.WARNING: "h2", Severity.INFO: ""}


async def page(request: Request) -> Response:
    web = web_of(request)
    observation = web.feed.current
    if observation.snapshot is None:
        return web.render(request, "waiting.html")
    findings, trouble, with_acls = list(observation.findings or ()), "", "acls" in request.query_params
    if with_acls:
        try:
            async with asyncio.timeout(TIMEOUT), web.examinations, web.access.zookeeper() as zk:
                tree = await read_kafka_tree(zk, int(time.time() * 1000))
            findings = await asyncio.to_thread(examine, tree)
        except (KlammError, OSError, TimeoutError) as error:
            trouble = str(error) or "it took too long"
    return web.render(
        request,
        "doctor.html",
        page=page_of(findings, request.query_params.get("page")),
        counts=_counts(findings),
        tags=TAGS,
        trouble=trouble,
        with_acls=with_acls,
        has_looked=with_acls or observation.findings is not None,
    )


def _counts(findings: list[Finding]) -> list[tuple[str, int]]:
    return [
        (severity.name.lower(), number)
        for severity in Severity
        if (number := sum(finding.severity is severity for finding in findings))
    ]
