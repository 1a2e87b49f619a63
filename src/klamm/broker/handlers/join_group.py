"""JoinGroup (11): a member enters a group or its next generation; the answer may wait for the join phase."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.events import Join, JoinAnswer
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.JOIN_GROUP)
_MEMBER: Final = _RESPONSE.JoinGroupResponseMember
VERSION_REBALANCE_TIMEOUT: Final = 1
VERSION_KNOWN_ID: Final = 4
"""From here on a dynamic member gets its id first and joins with it (KIP-394)."""
VERSION_PROTOCOL_TYPE: Final = 7
NO_CLIENT_ID: Final = "null"
"""What Kafka takes for the id of a member whose client has none."""


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if services.may_group(context, Operation.READ, request.group_id):
        answer = await services.groups.join(
            request.group_id, _join(services, context, version, request), context.connection
        )
    else:
        answer = JoinAnswer(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    protocol = answer.protocol if version >= VERSION_PROTOCOL_TYPE else answer.protocol or ""
    return _RESPONSE(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        member_id=answer.member_id,
        members=[_MEMBER(member_id=m[0], group_instance_id=m[1], metadata=m[2]) for m in answer.members],
    )


def _join(services: Services, context: RequestContext, version: int, request: Any) -> Join:
    has_timeout = version >= VERSION_REBALANCE_TIMEOUT
    prefix = request.group_instance_id or (NO_CLIENT_ID if context.client_id is None else context.client_id)
    return Join(
        request.member_id,
        services.groups.new_member_id(prefix),
        request.group_instance_id,
        context.client_id or "",
        "/" + context.peer.rpartition(":")[0],
        request.session_timeout_ms,
        request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms,
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        needs_known_id=version >= VERSION_KNOWN_ID,
    )
