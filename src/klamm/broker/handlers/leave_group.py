"""LeaveGroup (13): members leave, from version 3 on several at once (KIP-345)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from klamm.broker.coordinators.groups.events import LeavingMember
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import mapped
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

MEMBERS_PER_SLICE: Final = 100
_RESPONSE: Final = response_class(ApiKey.LEAVE_GROUP)
VERSION_BATCH: Final = 3


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if not services.may_group(context, Operation.READ, request.group_id):
        return _RESPONSE(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if version >= VERSION_BATCH:
        leaving = await mapped(
            lambda member: LeavingMember(member.member_id, member.group_instance_id), request.members
        )
    else:
        leaving = [LeavingMember(request.member_id)]
    try:
        errors: list[ErrorCode] = []
        for start in range(0, max(len(leaving), 1), MEMBERS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            errors += services.groups.leave(request.group_id, leaving[start : start + MEMBERS_PER_SLICE])
    except KafkaError as error:
        return _RESPONSE(error_code=error.code)
    if version < VERSION_BATCH:
        return _RESPONSE(error_code=errors[0])
    return _RESPONSE(
        error_code=ErrorCode.NONE,
        members=await mapped(_member, zip(leaving, errors, strict=True)),
    )


def _member(left: tuple[LeavingMember, ErrorCode]) -> Any:
    (member_id, instance_id), error = left
    return _RESPONSE.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=error)
