"""DescribeClientQuotas (48): the quotas of users and client ids that a filter accepts (KIP-546)."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.quota_admin import Component, Match, parts_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.DESCRIBE_CLIENT_QUOTAS)
_ENTRY: Final = _RESPONSE.EntryData


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    try:
        if not services.may(context, Operation.DESCRIBE_CONFIGS):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        components = [_component(component) for component in request.components]
        found = services.quotas.describe(components, strict=request.strict)
    except KafkaError as error:
        return _RESPONSE(entries=None, **error_fields(error))
    entries = [
        _ENTRY(
            entity=[_ENTRY.EntityData(entity_type=kind, entity_name=name) for kind, name in parts_of(entity)],
            values=[_ENTRY.ValueData(key=key, value=value) for key, value in limits.items()],
        )
        for entity, limits in found.items()
    ]
    return _RESPONSE(entries=entries, **error_fields(None))


def _component(component: Any) -> Component:
    try:
        match = Match(component.match_type)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Match type {component.match_type} is unknown.") from None
    return Component(component.entity_type, match, component.match)
