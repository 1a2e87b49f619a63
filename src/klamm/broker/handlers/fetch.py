"""Fetch (1): records for consumers and followers, by long poll, in sessions (`broker/fetch_sessions.py`).

Versions below 4 can only carry message formats that this broker does not store: each partition is answered with
UNSUPPORTED_VERSION, as by a Kafka broker that does not convert down. A partition that is named twice is answered once,
as by Kafka. A wide request is decoded, read and answered in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Final

from klamm.broker.fetch_sessions import FetchContext
from klamm.broker.handlers.freeing import freed
from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import in_slices
from klamm.broker.reads import FetchQuery
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import (
    ENTRIES_PER_SLICE,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_in_slices,
    encode_head,
    encode_in_slices,
)
from klamm.wire.messages import decode_request as decode_message
from klamm.wire.messages import encode_response as encode_message
from klamm.wire.messages import response_class
from klamm.wire.slices import finish

VERSION_FIRST_SERVED: Final = 4
WIDE_BYTES: Final = 32_000
"""A larger request names more than a thousand partitions."""
CONSUMER: Final = -1
_OLD: Final = response_class(ApiKey.FETCH)


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Metered:
    if version < VERSION_FIRST_SERVED:
        return Metered(None, lambda _: [_decline(version, body)])
    decoding = decode_in_slices(version, body)
    request = await in_slices(decoding) if len(body) > WIDE_BYTES else finish(decoding)
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


def _decline(version: int, body: memoryview) -> bytes:
    request = decode_message(ApiKey.FETCH, version, body)
    topic_class = _OLD.FetchableTopicResponse
    topics = [
        topic_class(
            topic=topic.topic,
            partitions=[
                topic_class.PartitionData(
                    partition_index=entry.partition,
                    error_code=ErrorCode.UNSUPPORTED_VERSION,
                    high_watermark=-1,
                    records=b"",
                )
                for entry in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return encode_message(_OLD(responses=topics), version)
