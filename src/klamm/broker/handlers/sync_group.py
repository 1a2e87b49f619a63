"""SyncGroup (14): the leader hands in the assignment, every member gets its own."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.events import Sync, SyncAnswer
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.SYNC_GROUP)
VERSION_PROTOCOL: Final = 5
"""From here on type and name of the protocol are mandatory (KIP-559)."""


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if version >= VERSION_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
        answer = SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not services.may_group(context, Operation.READ, request.group_id):
        answer = SyncAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    else:
        sync = Sync(
            request.member_id,
            request.generation_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            {each.member_id: bytes(each.assignment) for each in request.assignments},
        )
        answer = await services.groups.sync(request.group_id, sync, context.connection)
    return _RESPONSE(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
