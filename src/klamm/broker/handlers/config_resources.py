"""What the three configuration APIs share: which resource a client names, and whether it may touch it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from klamm.broker.config_admin import ConfigResource, ResourceType
from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
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


def counted(resources: Iterable[Any]) -> Counter[tuple[int, str]]:
    """How often each is named."""
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)


def check_resource_named_once(resource: Any, counts: Counter[tuple[int, str]]) -> None:
    if counts[resource.resource_type, resource.resource_name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Resource {resource.resource_name} appears more than once.")
