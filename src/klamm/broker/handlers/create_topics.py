"""CreateTopics (19): checks each topic, writes it to ZooKeeper, and answers when every partition has a leader.

Only the controller serves it (KIP-4). Leaders are looked up in this broker's metadata. After a timeout the answer is
REQUEST_TIMED_OUT, and the topic stays.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from klamm.broker.handlers.answers import check_named_once
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.broker.topics import NewTopic, PlannedTopic
from klamm.model.errors import ErrorCode, KafkaError, ZooKeeperError
from klamm.model.ids import BrokerId
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.CREATE_TOPICS)
_RESULT: Final = _RESPONSE.CreatableTopicResult
TOPICS_PER_SLICE: Final = 50


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    names: Counter[str] = Counter()
    async for topic in each(request.topics):
        names[topic.name] += 1
    results: dict[str, Any] = {}
    created: dict[str, PlannedTopic] = {}
    async for topic in each(request.topics, TOPICS_PER_SLICE):
        if topic.name in results:
            continue
        try:
            planned = await _create(services, context, names, topic, validate_only=bool(request.validate_only))
        except KafkaError as error:
            results[topic.name] = _refused(topic.name, error.code, error.message)
        except ZooKeeperError as error:
            results[topic.name] = _refused(topic.name, ErrorCode.REQUEST_TIMED_OUT, str(error))
        else:
            results[topic.name] = _accepted(services, context, planned)
            if not request.validate_only:
                created[topic.name] = planned
    for name in await _wait_for_leaders(services, context, created, request.timeout_ms):
        message = "The topic is created, but this broker does not know its leaders yet."
        results[name] = _refused(name, ErrorCode.REQUEST_TIMED_OUT, message)
    return _RESPONSE(topics=list(results.values()))


async def _create(
    services: Services, context: RequestContext, names: Counter[str], topic: Any, *, validate_only: bool
) -> PlannedTopic:
    services.check_is_controller()
    check_named_once(topic.name, names)
    if not (services.may(context, Operation.CREATE) or services.may(context, Operation.CREATE, topic.name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if services.metadata.topic(topic.name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    planned = services.topics.plan(_new_topic(topic), await services.placement_brokers())
    if validate_only:
        await services.topics.check(planned)
    else:
        await services.topics.create(planned)
    return planned


def _new_topic(topic: Any) -> NewTopic:
    partitions = [entry.partition_index for entry in topic.assignments]
    if len(set(partitions)) < len(partitions):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned twice.")
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {entry.partition_index: [BrokerId(b) for b in entry.broker_ids] for entry in topic.assignments} or None,
        {config.name: config.value for config in topic.configs},
    )


async def _wait_for_leaders(
    services: Services, context: RequestContext, created: dict[str, PlannedTopic], timeout_ms: int
) -> list[str]:
    """Returns the topics that are not ready in time."""

    def missing() -> list[str]:
        has_leaders = services.metadata.has_leaders
        return [name for name, planned in created.items() if not has_leaders(name, planned.replicas)]

    if timeout_ms <= 0:
        return list(created)
    await services.metadata.wait_until(lambda: not missing(), timeout_ms / 1000, context.connection)
    return missing()


def _refused(name: str, error: ErrorCode, message: str | None) -> Any:
    return _RESULT(
        name=name, error_code=error, error_message=message, num_partitions=-1, replication_factor=-1, configs=[]
    )


def _accepted(services: Services, context: RequestContext, planned: PlannedTopic) -> Any:
    may_see = services.may(context, Operation.DESCRIBE_CONFIGS, planned.name)
    if not may_see:
        return _RESULT(
            name=planned.name,
            error_code=ErrorCode.NONE,
            error_message=None,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    return _RESULT(
        name=planned.name,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(planned.replicas),
        replication_factor=planned.replication_factor,
        configs=[
            _RESULT.CreatableTopicConfigs(
                name=entry.key,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in services.configs.describe_topic(planned.configs)
        ],
    )
