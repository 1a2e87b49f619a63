"""AlterConfigs (33): replaces all overrides of a topic or a broker. IncrementalAlterConfigs changes single keys."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.config_admin import ConfigResource
from klamm.broker.handlers.config_resources import alter_each
from klamm.broker.handlers.services import Services
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ALTER_CONFIGS)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    async def replace(resource: ConfigResource, named: Any) -> None:
        wanted = {config.name: config.value for config in named.configs}
        await services.configs.replace(resource, wanted, validate_only=request.validate_only)

    return await alter_each(services, context, _RESPONSE, request.resources, replace)
