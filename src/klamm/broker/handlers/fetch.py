"""Fetch (1): records for consumers and followers, by long poll. There are no sessions: every answer has session id 0.

Versions below 4 can only carry message formats that this broker does not store: each partition is answered with
UNSUPPORTED_VERSION, as by a Kafka broker that does not convert down.
"""

from __future__ import annotations

from typing import Final

from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.reads import FetchQuery
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import FetchPartition, FetchRequest, FetchResult, decode_request, encode_response
from klamm.wire.messages import decode_request as decode_message
from klamm.wire.messages import encode_response as encode_message
from klamm.wire.messages import response_class

VERSION_FIRST_SERVED: Final = 4
_OLD: Final = response_class(ApiKey.FETCH)


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Metered:
    if version < VERSION_FIRST_SERVED:
        return Metered(None, lambda _: [_decline(version, body)])
    request = decode_request(version, body)
    if request.session_epoch > 0:  # this broker opens no sessions: the client starts again with a full fetch
        error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return Metered(None, lambda _: encode_response(version, [], error=error))
    entries, refused = _authorized(services, context, request)
    query = FetchQuery(
        version,
        BrokerId(request.replica_id),
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.read_committed,
    )
    results = await services.reads.fetch(query, entries, refused, context.connection)
    size = None if query.from_follower else sum(len(result.records) for result in results)
    return Metered(size, lambda throttle_ms: encode_response(version, results, throttle_ms=throttle_ms))


def _authorized(
    services: Services, context: RequestContext, request: FetchRequest
) -> tuple[list[FetchPartition], list[FetchResult]]:
    """The partitions to read, and the refused ones, which are answered but do not end the wait."""
    allowed: dict[str, bool] = {}
    entries, refused = [], []
    for entry in request.partitions:
        name = entry.partition
        if name.topic not in allowed:
            allowed[name.topic] = (
                services.may(context, Operation.CLUSTER_ACTION)
                if request.replica_id >= 0
                else services.may(context, Operation.READ, name.topic)
            )
        if not allowed[name.topic]:
            refused.append(FetchResult(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif name not in services.metadata and name not in services.replicas.partitions:
            refused.append(FetchResult(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            entries.append(entry)
    return entries, refused


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
