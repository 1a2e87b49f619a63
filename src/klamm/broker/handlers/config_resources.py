"""What the three configuration APIs share: which resource a client names, and whether it may touch it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from klamm.broker.config_admin import ConfigResource, ResourceType
from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation

RESOURCES_PER_SLICE: Final = 50

_TYPES = {int(kind): kind for kind in ResourceType}


def checked(
    services: Services, context: RequestContext, operation: Operation, kind: int, name: str | None
) -> ConfigResource:
    """The resource, if it exists and the client may do this to it. Raises the error for the client."""
    if kind not in _TYPES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resource type {kind} has no configuration.")
    resource = ConfigResource(_TYPES[kind], name or "")
    if resource.type is not ResourceType.TOPIC:
        if not services.may(context, operation):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return resource
    if not services.may(context, operation, resource.name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if services.metadata.topic(resource.name) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {resource.name!r} does not exist.")
    return resource


async def outcome(call: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    """The error fields of one resource: a failure concerns it alone."""
    try:
        await call()
    except KafkaError as error:
        return error_fields(error)
    except ZNodeError as error:
        return error_fields(KafkaError(ErrorCode.INVALID_CONFIG, str(error)))
    except ZooKeeperError as error:
        return error_fields(KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)))
    return error_fields(None)


async def alter_each(
    services: Services,
    context: RequestContext,
    response: Any,
    resources: Sequence[Any],
    alter: Callable[[ConfigResource, Any], Awaitable[None]],
) -> Any:
    """Alter each resource that the client may alter and names once; answer with the outcome of each. `response` is the
    class of the answer."""
    counts: Counter[tuple[int, str]] = Counter()
    async for named in each(resources):
        counts[named.resource_type, named.resource_name] += 1
    answers = []
    async for named in each(resources, RESOURCES_PER_SLICE):
        kind, name = named.resource_type, named.resource_name

        async def altered(named: Any = named, kind: int = kind, name: str = name) -> None:
            if counts[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resource {name} appears more than once.")
            await alter(checked(services, context, Operation.ALTER_CONFIGS, kind, name), named)

        error = await outcome(altered)
        answers.append(response.AlterConfigsResourceResponse(resource_type=kind, resource_name=name, **error))
    return response(responses=answers)
