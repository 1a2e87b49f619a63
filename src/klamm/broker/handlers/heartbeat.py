"""Heartbeat (12): a member is alive, and hears whether it must join again."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.HEARTBEAT)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if not services.may_group(context, Operation.READ, request.group_id):
        return _RESPONSE(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    error = services.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return _RESPONSE(error_code=error)
