"""DeleteGroups (42): removes groups without members, with their offsets."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

GROUPS_PER_SLICE: Final = 50
_RESPONSE: Final = response_class(ApiKey.DELETE_GROUPS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    """The groups of a slice wait together for their followers."""
    names = list({name: None async for name in each(request.groups_names)})
    errors: list[ErrorCode] = []
    for start in range(0, len(names), GROUPS_PER_SLICE):
        some = names[start : start + GROUPS_PER_SLICE]
        errors += await asyncio.gather(*(_delete(services, context, name) for name in some))
    return _RESPONSE(
        results=[
            _RESPONSE.DeletableGroupResult(group_id=name, error_code=error)
            async for name, error in each(zip(names, errors, strict=True))
        ]
    )


async def _delete(services: Services, context: RequestContext, name: str) -> ErrorCode:
    if not services.may_group(context, Operation.DELETE, name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return await services.groups.delete(name)
