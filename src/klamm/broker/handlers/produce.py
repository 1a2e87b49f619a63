"""Produce (0): appends record batches to the leaders on this broker. acks=0 has no answer: an error closes the
connection instead.

A transactional batch needs a transactional id that the client may write with; without one, nothing of the request is
appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import in_slices
from klamm.log.validation import DECOMPRESSION_FACTOR
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.errors import CloseConnection
from klamm.wire.old_formats import is_old, up_converted
from klamm.wire.produce import (
    ENTRIES_PER_SLICE,
    FIRST_WITH_TRANSACTIONAL_ID,
    ProduceResult,
    decode_in_slices,
    encode_in_slices,
    encode_response,
    unfit,
)
from klamm.wire.slices import finish

NO_ACKS: Final = 0
WIDE_BYTES: Final = 64_000
ADMIN_CLIENT: Final = "__admin_client"
"""The client id that may write to internal topics, as in Kafka."""


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Metered:
    decoding = decode_in_slices(version, body)
    request = await in_slices(decoding) if len(body) > WIDE_BYTES else finish(decoding)
    transactional_id = request.transactional_id
    may_write_transactions = transactional_id is not None and services.may_transactional_id(
        context, Operation.WRITE, transactional_id
    )
    is_refused = not may_write_transactions and request.is_transactional
    allowed: dict[str, bool] = {}
    accepted, results = [], []
    for number, (name, records) in enumerate(request.entries, 1):
        if number % ENTRIES_PER_SLICE == 0:
            await asyncio.sleep(0)
        if name.topic not in allowed:
            allowed[name.topic] = services.may(context, Operation.WRITE, name.topic)
        if is_refused:
            results.append(ProduceResult(name, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif not allowed[name.topic]:
            results.append(ProduceResult(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif (refusal := unfit(version, records)) is not None and name in services.metadata:
            results.append(ProduceResult(name, refusal.code, message=refusal.message))
        else:
            try:
                accepted.append((name, await _current_format(services, version, name, records)))
            except KafkaError as error:
                results.append(ProduceResult(name, error.code, message=error.message))
    results += await services.appends.append(
        accepted,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        internal=context.client_id == ADMIN_CLIENT,
        client=context.connection,
    )
    if request.acks == NO_ACKS:
        return Metered(len(body), lambda throttle_ms: _answer_nothing(results))
    if len(results) > ENTRIES_PER_SLICE:
        return Metered(len(body), lambda throttle_ms: in_slices(encode_in_slices(version, results, throttle_ms)))
    return Metered(len(body), lambda throttle_ms: encode_response(version, results, throttle_ms))


async def _current_format(services: Services, version: int, name: TopicPartition, records: memoryview) -> Buffer:
    """Only versions below 3 may carry formats 0 and 1, which are converted, in the pool: a set may be compressed."""
    if version >= FIRST_WITH_TRANSACTIONAL_ID or not is_old(records):
        return records
    held = services.replicas.partitions.get(name)
    log = None if held is None else held.log
    limit = services.config.message_max_bytes if log is None else log.config.max_message_bytes
    return await services.pool(partial(up_converted, records, DECOMPRESSION_FACTOR * limit))


def _answer_nothing(results: Sequence[ProduceResult]) -> Sequence[Buffer] | None:
    failed = next((result for result in results if result.error is not ErrorCode.NONE), None)
    if failed is not None:
        raise CloseConnection(f"produce without acks failed: {failed.partition} {failed.error.name}")
    return None
