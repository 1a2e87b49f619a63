"""Elect the preferred leaders of all partitions that are led by another replica."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from klamm.client.admin import Admin
from klamm.dashboard.actions import ActionRefused
from klamm.dashboard.web import Fields, web_of
from klamm.model.errors import ErrorCode
from klamm.model.wording import count

PREFERRED: Final = 0
NAMED_MAX: Final = 3


async def elect(request: Request) -> Response:
    web = web_of(request)

    async def action(_fields: Fields, cluster_id: str) -> str:
        async with web.access.brokers(cluster_id) as cluster:
            outcomes = await Admin(cluster).elect_leaders(PREFERRED, None)
        elected = sum(error is None for error in outcomes.values())
        refused = [
            f"{name} {error.code.name}"
            for name, error in sorted(outcomes.items())
            if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        if refused:
            named = ", ".join(refused[:NAMED_MAX])
            raise ActionRefused(f"{count(elected, 'leader')} elected, {len(refused)} refused: {named}")
        return f"{count(elected, 'preferred leader')} elected"

    return await web.act(request, "/topics", action)
