"""DeleteTopics (20): marks topics in ZooKeeper for the controller, and answers when they have left the metadata cache.

The deletion goes on after REQUEST_TIMED_OUT. Marking a topic twice is fine.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.model.errors import ErrorCode, KafkaError, ZooKeeperError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.DELETE_TOPICS)
VERSION_DELETION_DISABLED: Final = 3


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    results: dict[str, ErrorCode] = {}
    async for name in each(request.topic_names):
        try:
            await _mark(services, context, version, name)
            results[name] = ErrorCode.NONE
        except KafkaError as error:
            results[name] = error.code
        except ZooKeeperError:
            results[name] = ErrorCode.REQUEST_TIMED_OUT
    marked = [name for name, error in results.items() if error is ErrorCode.NONE]

    def left() -> list[str]:
        return [name for name in marked if services.metadata.topic(name) is not None]

    await services.metadata.wait_until(lambda: not left(), request.timeout_ms / 1000, context.connection)
    for name in left():
        results[name] = ErrorCode.REQUEST_TIMED_OUT
    return _RESPONSE(
        responses=[
            _RESPONSE.DeletableTopicResult(name=name, error_code=error) async for name, error in each(results.items())
        ],
    )


async def _mark(services: Services, context: RequestContext, version: int, name: str) -> None:
    services.check_is_controller()
    if not services.config.delete_topic_enable:
        known = version >= VERSION_DELETION_DISABLED
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST)
    if not services.may(context, Operation.DELETE, name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if services.metadata.topic(name) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await services.topics.mark_for_deletion(name)
