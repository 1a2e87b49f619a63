"""UpdateMetadata (6): the controller describes the cluster; Metadata passes it on to clients."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import in_slices
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control.decoders import decode_update_metadata
from klamm.wire.control.responses import encode_error


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    update = await in_slices(decode_update_metadata(version, body))
    error = await services.replicas.update_metadata(update)
    return [encode_error(ApiKey.UPDATE_METADATA, version, error)]
