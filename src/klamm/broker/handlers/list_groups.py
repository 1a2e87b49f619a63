"""ListGroups (16): the groups that this broker coordinates. Clients ask every broker."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.LIST_GROUPS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    error, groups = services.groups.list()
    sees_all = services.may(context, Operation.DESCRIBE)
    return _RESPONSE(
        error_code=error,
        groups=[
            _RESPONSE.ListedGroup(group_id=group.id, protocol_type=group.protocol_type or "")
            async for group in each(groups)
            if sees_all or services.may_group(context, Operation.DESCRIBE, group.id)
        ],
    )
