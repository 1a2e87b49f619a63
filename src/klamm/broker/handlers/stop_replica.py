"""StopReplica (5): stop following; with the delete flag, also forget the partition and remove its log."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import in_slices
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control import schema_requests
from klamm.wire.control.responses import encode_answer


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    request = schema_requests.stop_replica(version, body)
    answer = await services.replicas.stop_replica(request.sender, request.partitions)
    return [await in_slices(encode_answer(ApiKey.STOP_REPLICA, version, answer))]
