"""AlterClientQuotas (49): sets or removes the quotas of users and client ids (KIP-546)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.config_resources import outcome
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.broker.quota_admin import QuotaChange, entity_from
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

ENTRIES_PER_SLICE: Final = 50
_RESPONSE: Final = response_class(ApiKey.ALTER_CLIENT_QUOTAS)
_ENTRY: Final = _RESPONSE.EntryData


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    entries = []
    async for named in each(request.entries, ENTRIES_PER_SLICE):
        parts = [(part.entity_type, part.entity_name) for part in named.entity]

        async def alter(named: Any = named, parts: Any = parts) -> None:
            if not services.may(context, Operation.ALTER_CONFIGS):
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            changes = [QuotaChange(op.key, None if op.remove else op.value) for op in named.ops]
            await services.quotas.alter(entity_from(parts), changes, validate_only=request.validate_only)

        error = await outcome(alter)
        entity = [_ENTRY.EntityData(entity_type=kind, entity_name=name) for kind, name in parts]
        entries.append(_ENTRY(entity=entity, **error))
    return _RESPONSE(entries=entries)
