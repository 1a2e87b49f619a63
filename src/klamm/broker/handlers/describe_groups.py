"""DescribeGroups (15): state, protocol and members of groups that this broker coordinates."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.coordinator import Description
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pace
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

ENTRIES_PER_SLICE: Final = 500
"""Groups and members."""
_RESPONSE: Final = response_class(ApiKey.DESCRIBE_GROUPS)
_GROUP: Final = _RESPONSE.DescribedGroup
_MEMBER: Final = _GROUP.DescribedGroupMember
NOT_ASKED: Final = -(2**31)
OPERATION_BITS: Final = {Operation.READ: 3, Operation.DELETE: 6, Operation.DESCRIBE: 8}
"""The operations on a group, with Kafka's numbers."""


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    pace = Pace(ENTRIES_PER_SLICE)
    names = {name: None async for name in pace.each(request.groups)}
    return _RESPONSE(
        groups=[await _describe(services, context, name, request, pace) async for name in pace.each(names)]
    )


async def _describe(services: Services, context: RequestContext, group_id: str, request: Any, pace: Pace) -> Any:
    if not services.may_group(context, Operation.DESCRIBE, group_id):
        return await _group(group_id, Description(ErrorCode.GROUP_AUTHORIZATION_FAILED), pace)
    description = services.groups.describe(group_id)
    if description.error is ErrorCode.NONE and request.include_authorized_operations:
        bits = [bit for it, bit in OPERATION_BITS.items() if services.may_group(context, it, group_id)]
        return await _group(group_id, description, pace, sum(1 << bit for bit in bits))
    return await _group(group_id, description, pace)


async def _group(group_id: str, description: Description, pace: Pace, operations: int = NOT_ASKED) -> Any:
    return _GROUP(
        error_code=description.error,
        group_id=group_id,
        group_state=description.state,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol,
        members=[
            _MEMBER(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            async for member in pace.each(description.members)
        ]
        if description.members  # most groups of a broker with thousands have none
        else [],
        authorized_operations=operations,
    )
