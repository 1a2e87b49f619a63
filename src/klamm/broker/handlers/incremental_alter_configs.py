"""IncrementalAlterConfigs (44): sets, deletes, appends to or subtracts from single keys (KIP-339)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.config_admin import KeyChange, Op
from klamm.broker.handlers.config_resources import (
    RESOURCES_PER_SLICE,
    check_resource_named_once,
    checked,
    counted,
    outcome,
)
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    responses = []
    counts = counted(request.resources)
    async for named in each(request.resources, RESOURCES_PER_SLICE):

        async def alter(named: Any = named) -> None:
            check_resource_named_once(named, counts)
            kind, name = named.resource_type, named.resource_name
            resource = checked(services, context, Operation.ALTER_CONFIGS, kind, name)
            changes = [KeyChange(config.name, _operation(config), config.value) for config in named.configs]
            await services.configs.change(resource, changes, validate_only=request.validate_only)

        error = await outcome(alter)
        responses.append(
            _RESPONSE.AlterConfigsResourceResponse(
                resource_type=named.resource_type, resource_name=named.resource_name, **error
            )
        )
    return _RESPONSE(responses=responses)


def _operation(config: Any) -> Op:
    try:
        return Op(config.config_operation)
    except ValueError:
        reason = f"{config.name}: operation {config.config_operation} is unknown"
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason) from None
