"""IncrementalAlterConfigs (44): sets, deletes, appends to or subtracts from single keys (KIP-339)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.config_admin import ConfigResource, KeyChange, Op
from klamm.broker.handlers.config_resources import alter_each
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    async def change(resource: ConfigResource, named: Any) -> None:
        changes = [KeyChange(config.name, _operation(config), config.value) for config in named.configs]
        await services.configs.change(resource, changes, validate_only=request.validate_only)

    return await alter_each(services, context, _RESPONSE, request.resources, change)


def _operation(config: Any) -> Op:
    try:
        return Op(config.config_operation)
    except ValueError:
        reason = f"{config.name}: operation {config.config_operation} is unknown"
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason) from None
