"""Fetch (1): records for consumers and followers, by long poll, in sessions (`broker/fetch_sessions.py`).

Versions below 4 carry message formats that this broker does not store: the records are converted in the pool, unless
`message.downconversion.enable` of the topic forbids it. A partition that is named twice is answered once, as by Kafka.
A wide request is decoded, read and answered in slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Generator, Sequence
from functools import partial
from typing import Any, Final

from klamm.broker.fetch_sessions import FetchContext
from klamm.broker.handlers.freeing import freed
from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, in_slices
from klamm.broker.reads import FetchQuery
from klamm.log.validation import DECOMPRESSION_FACTOR
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.down_conversion import down_converted
from klamm.wire.fetch import (
    ENTRIES_PER_SLICE,
    FIRST_WITH_BATCHES,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_in_slices,
    encode_head,
    encode_in_slices,
)
from klamm.wire.slices import finish

WIDE_BYTES: Final = 32_000
"""A larger request names more than a thousand partitions."""
CONSUMER: Final = -1
FIRST_WITH_TIMESTAMPS: Final = 2
"""Older versions carry message format 0."""

log = logging.getLogger(__name__)


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Metered:
    decoding = decode_in_slices(version, body)
    request = await in_slices(decoding) if len(body) > WIDE_BYTES else finish(decoding)
    if version < FIRST_WITH_BATCHES:  # a broker that is so old cannot be in the cluster
        request = request._replace(replica_id=CONSUMER)
    # Only the sessions of brokers are without a limit, and any client can call itself one.
    opening = services.fetch_sessions.opening(request if context.privileged else request._replace(replica_id=CONSUMER))
    session = await in_slices(opening) if len(body) > WIDE_BYTES else finish(opening)
    entries: list[FetchPartition] = []
    refused: list[FetchResult] = []
    for start in range(0, len(session.partitions), ENTRIES_PER_SLICE):
        if start:
            await asyncio.sleep(0)
        some = session.partitions[start : start + ENTRIES_PER_SLICE]
        _authorize(services, context, request, some, entries, refused)
    allowed_bytes = services.client_quotas.fetch_bytes_max(context)
    query = FetchQuery(
        version,
        BrokerId(request.replica_id),
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes if request.replica_id >= 0 else min(request.max_bytes, allowed_bytes),
        request.read_committed,
        request.rack_id,
    )
    results = await services.reads.fetch(query, entries, context.connection, session.resting)
    if version < FIRST_WITH_BATCHES:
        offsets = {entry.partition: entry.fetch_offset for entry in entries}
        results = [await _in_old_format(services, version, offsets[one.partition], one) async for one in each(results)]
    size = None if query.from_follower else sum(len(result.records) for result in results)
    results += refused

    def encode(throttle_ms: int) -> Sequence[Buffer] | Awaitable[Sequence[Buffer]]:
        answering = _answering(version, session, results, throttle_ms)
        if len(results) <= ENTRIES_PER_SLICE:
            return finish(answering)
        return _freeing(answering, [request.partitions, entries, refused, results])

    return Metered(size, encode)


def _answering(
    version: int, session: FetchContext, results: list[FetchResult], throttle_ms: int
) -> Generator[None, None, list[Buffer]]:
    answer = session.throttled() if throttle_ms else (yield from session.answering(results))
    head = encode_head(version, throttle_ms=throttle_ms, error=answer.error, session_id=answer.session_id)
    return [head, *(yield from encode_in_slices(version, answer.results))]


async def _freeing(answering: Generator[None, None, list[Buffer]], used: list[list[Any]]) -> Sequence[Buffer]:
    """The answer, in slices; then what it was made from is freed."""
    answer = await in_slices(answering)
    for entries in used:
        await in_slices(freed(entries))
    return answer


def _authorize(
    services: Services,
    context: RequestContext,
    request: FetchRequest,
    partitions: Sequence[FetchPartition],
    entries: list[FetchPartition],
    refused: list[FetchResult],
) -> None:
    """Sort one slice into the partitions to read, and those refused, which are answered but do not end the wait."""
    allowed: dict[str, bool] = {}
    for entry in partitions:
        name = entry.partition
        if name.topic not in allowed:
            allowed[name.topic] = (
                services.may(context, Operation.CLUSTER_ACTION)
                if request.replica_id >= 0
                else services.may(context, Operation.READ, name.topic)
            )
        if not allowed[name.topic]:
            refused.append(FetchResult(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif name not in services.replicas.partitions and name not in services.metadata:
            refused.append(FetchResult(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            entries.append(entry)


async def _in_old_format(services: Services, version: int, fetch_offset: int, result: FetchResult) -> FetchResult:
    held = services.replicas.partitions.get(result.partition)
    if result.error is not ErrorCode.NONE or held is None or held.log is None:
        return result
    config = held.log.config
    if not config.message_downconversion_enable:
        return FetchResult(result.partition, ErrorCode.UNSUPPORTED_VERSION)
    if not len(result.records):
        return result
    magic = 1 if version >= FIRST_WITH_TIMESTAMPS else 0
    limit = DECOMPRESSION_FACTOR * config.max_message_bytes
    try:
        records = await services.pool(partial(down_converted, memoryview(result.records), magic, fetch_offset, limit))
    except KafkaError as error:
        log.warning("%s: cannot be read by Fetch %d: %s", result.partition, version, error)
        return FetchResult(result.partition, error.code)
    return result._replace(records=records)
