"""AlterReplicaLogDirs (34): which of this broker's directories holds a replica, now or once it is created (KIP-113).

The answer comes when the move is accepted; DescribeLogDirs shows its progress. For a replica that is not here yet the
answer is REPLICA_NOT_AVAILABLE, and the directory is remembered, because tools send this request before they reassign.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
from klamm.log.directories.log_directory import LogDirectory, future_name
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ALTER_REPLICA_LOG_DIRS)
_TOPIC: Final = _RESPONSE.AlterReplicaLogDirTopicResult
_PARTITION: Final = _TOPIC.AlterReplicaLogDirPartitionResult
LONGEST_UNIQUE: Final = "0" * 32


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    may = services.may(context, Operation.ALTER)
    codes: list[tuple[TopicPartition, ErrorCode]] = []
    named = (
        (wanted.path, TopicPartition(topic.name, number))
        for wanted in request.dirs
        for topic in wanted.topics
        for number in topic.partitions
    )
    async for path, name in each(named):
        codes.append((name, _ask(services, name, path) if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    topics = await topics_of(codes, _partition)
    return _RESPONSE(results=[_TOPIC(topic_name=topic, partitions=found) for topic, found in topics.items()])


def _partition(name: TopicPartition, error: ErrorCode) -> Any:
    return _PARTITION(partition_index=name.partition, error_code=error)


def _ask(services: Services, name: TopicPartition, path: str) -> ErrorCode:
    logs = services.replicas.logs
    try:
        future_name(name, LONGEST_UNIQUE)
        target = _directory(services, path)
        if logs.is_offline(name):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if logs.get(name) is None:
            logs.prefer(name, target)
            known = services.metadata.topic(name.topic) is not None
            return ErrorCode.REPLICA_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if logs.home_of(name) is target:
            logs.dir_moves.cancel(name)
        else:
            logs.dir_moves.request(name, target)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def _directory(services: Services, path: str) -> LogDirectory:
    for directory in services.replicas.logs.directories:
        if directory.path == path:
            if directory.failure is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline: {directory.failure}")
            return directory
    raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not among log.dirs")
