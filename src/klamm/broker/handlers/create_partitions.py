"""CreatePartitions (37): grows topics by a write to their znodes (KIP-195).

Only the controller serves it, topic by topic. The answer comes when this broker knows a leader of every new partition.
After a timeout it is REQUEST_TIMED_OUT, although the topic has grown.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from klamm.broker.handlers.answers import check_named_once, error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.broker.topics import Growth
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.ids import INTERNAL_TOPICS, BrokerId
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.CREATE_PARTITIONS)
_RESULT: Final = _RESPONSE.CreatePartitionsTopicResult


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    names: Counter[str] = Counter()
    async for topic in each(request.topics):
        names[topic.name] += 1
    results: dict[str, KafkaError | None] = {}
    grown: dict[str, range] = {}
    async for topic in each(request.topics):
        if topic.name in results:
            continue
        results[topic.name] = None
        try:
            added = await _grow(services, context, names, topic, validate_only=bool(request.validate_only))
            if not request.validate_only:
                grown[topic.name] = added
        except KafkaError as error:
            results[topic.name] = error
        except ZNodeError as error:
            results[topic.name] = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        except ZooKeeperError as error:
            results[topic.name] = KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error))

    def missing() -> list[str]:
        return [name for name, added in grown.items() if not services.metadata.has_leaders(name, added)]

    await services.metadata.wait_until(lambda: not missing(), request.timeout_ms / 1000, context.connection)
    late = list(grown) if request.timeout_ms <= 0 else missing()
    message = "The topic has grown, but this broker does not know its new leaders yet."
    timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
    results.update(dict.fromkeys(late, timed_out))
    return _RESPONSE(results=[_RESULT(name=name, **error_fields(error)) async for name, error in each(results.items())])


async def _grow(
    services: Services, context: RequestContext, names: Counter[str], topic: Any, *, validate_only: bool
) -> range:
    """Returns the numbers of the new partitions."""
    services.check_is_controller()
    check_named_once(topic.name, names)
    if not services.may(context, Operation.ALTER, topic.name):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic.name in INTERNAL_TOPICS:
        reason = f"'{topic.name}' cannot grow: its keys would move away from their records."
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    lists = None
    if topic.assignments is not None:
        lists = [tuple(map(BrokerId, entry.broker_ids)) for entry in topic.assignments]
    growth = Growth(topic.name, topic.count, lists)
    return await services.topics.grow(growth, await services.placement_brokers(), validate_only=validate_only)
