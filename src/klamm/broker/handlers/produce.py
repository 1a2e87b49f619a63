"""Produce (0): appends record batches to the leaders on this broker. acks=0 has no answer: an error closes the
connection instead.

Transactional batches are refused: this broker has no transaction coordinator yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.errors import CloseConnection
from klamm.wire.produce import ProduceResult, decode_request, encode_response, unfit

NO_ACKS: Final = 0


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Metered:
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
    results += await services.appends.append(
        accepted, acks=request.acks, timeout_ms=request.timeout_ms, client=context.connection
    )
    if request.acks == NO_ACKS:
        return Metered(len(body), lambda throttle_ms: _answer_nothing(results))
    return Metered(len(body), lambda throttle_ms: encode_response(version, results, throttle_ms))


def _answer_nothing(results: Sequence[ProduceResult]) -> Sequence[Buffer] | None:
    failed = next((result for result in results if result.error is not ErrorCode.NONE), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.partition} {failed.error.name}")
    return None
