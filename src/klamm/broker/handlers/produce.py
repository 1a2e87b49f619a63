"""Produce (0): record batches to the leaders here. acks=0 has no answer: an error closes the connection instead.

Transactional batches are refused: there is no transaction coordinator on this broker yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.errors import CloseConnection
from klamm.wire.produce import ProduceResult, decode_request, encode_response, unfit

NO_ACKS: Final = 0


async def handle(
    services: Services, context: RequestContext, version: int, body: memoryview
) -> Sequence[Buffer] | None:
    request = decode_request(version, body)
    allowed: dict[str, bool] = {}
    accepted, results = [], []
    for name, records in request.entries:
        if name.topic not in allowed:
            allowed[name.topic] = services.may(context, Operation.WRITE, name.topic)
        if request.transactional_id is not None:
            results.append(ProduceResult(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif not allowed[name.topic]:
            results.append(ProduceResult(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif (refusal := unfit(version, records)) is not None and name in services.metadata:
            results.append(ProduceResult(name, refusal.code, message=refusal.message))
        else:
            accepted.append((name, records))
    appended = await services.appends.append(
        accepted, acks=request.acks, timeout_ms=request.timeout_ms, client=context.connection
    )
    for done in appended:
        is_good = done.error is ErrorCode.NONE
        results.append(
            ProduceResult(
                done.partition,
                done.error,
                done.base_offset if is_good else -1,
                done.log_append_time,
                done.log_start_offset,
                done.message,
            )
        )
    throttle_ms = services.quotas.throttle(context, "Produce", len(body))
    if request.acks == NO_ACKS:
        failed = [result for result in results if result.error is not ErrorCode.NONE]
        if failed:
            raise CloseConnection(f"produce without acks failed: {failed[0].partition} {failed[0].error.name}")
        return None
    return encode_response(version, results, throttle_ms)
