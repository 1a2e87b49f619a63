"""UpdateMetadata (6): the controller tells what the cluster looks like; clients hear it through Metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.control_requests import decode_update_metadata
from klamm.broker.handlers.services import Services
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import encode_response, response_class

_RESPONSE: Final = response_class(ApiKey.UPDATE_METADATA)


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    request = await decode_update_metadata(version, body)
    error = await services.replicas.update_metadata(request.sender, request.brokers, request.topics)
    return [encode_response(_RESPONSE(error_code=error), version)]
