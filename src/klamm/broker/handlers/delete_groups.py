"""DeleteGroups (42): removes groups without members, with their offsets."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

GROUPS_PER_SLICE: Final = 200
_RESPONSE: Final = response_class(ApiKey.DELETE_GROUPS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    results = []
    async for name in each(dict.fromkeys(request.groups_names), GROUPS_PER_SLICE):
        if services.may_group(context, Operation.DELETE, name):
            error = services.groups.delete(name)
        else:
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        results.append(_RESPONSE.DeletableGroupResult(group_id=name, error_code=error))
    return _RESPONSE(results=results)
