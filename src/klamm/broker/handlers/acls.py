"""DescribeAcls (29), CreateAcls (30), DeleteAcls (31): this broker has no authorizer, and says so as Kafka does."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import mapped
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_DESCRIBED: Final = response_class(ApiKey.DESCRIBE_ACLS)
_CREATED: Final = response_class(ApiKey.CREATE_ACLS)
_DELETED: Final = response_class(ApiKey.DELETE_ACLS)


async def describe(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    return _DESCRIBED(resources=[], **_refusal(services, context, Operation.DESCRIBE))


async def create(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    refusal = _refusal(services, context, Operation.ALTER)
    return _CREATED(results=await mapped(lambda _: _CREATED.AclCreationResult(**refusal), request.creations))


async def delete(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    refusal = _refusal(services, context, Operation.ALTER)
    results = await mapped(lambda _: _DELETED.DeleteAclsFilterResult(matching_acls=[], **refusal), request.filters)
    return _DELETED(filter_results=results)


def _refusal(services: Services, context: RequestContext, operation: Operation) -> dict[str, Any]:
    if not services.may(context, operation):
        return error_fields(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    return error_fields(KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker"))
