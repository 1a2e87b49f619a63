"""DescribeLogDirs (35): the log directories of this broker, their replicas and sizes, moves under way (KIP-113), and
from version 4 on the space of their volumes (KIP-827).

A failed directory is listed with KAFKA_STORAGE_ERROR and without replicas. A client that may not describe the cluster
gets an empty list, and from version 3 on the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each
from klamm.log.directories.log_directory import LogDirectory
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.messages import response_class

logger = logging.getLogger(__name__)

ERROR_FROM: Final = 3
"""The first version with an error code of its own."""
SPACE_FROM: Final = 4

_RESPONSE: Final = response_class(ApiKey.DESCRIBE_LOG_DIRS)
_DIRECTORY: Final = _RESPONSE.DescribeLogDirsResult
_TOPIC: Final = _DIRECTORY.DescribeLogDirsTopic
_PARTITION: Final = _TOPIC.DescribeLogDirsPartition


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    asked: set[TopicPartition] | None = None
    if request.topics is not None:
        asked = {TopicPartition(topic.topic, number) for topic in request.topics for number in topic.partitions}
    if not services.may(context, Operation.DESCRIBE):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if version >= ERROR_FROM else ErrorCode.NONE
        return _RESPONSE(error_code=refusal, results=[])
    directories = services.replicas.logs.directories
    return _RESPONSE(results=[await _describe(services, directory, asked, version) for directory in directories])


async def _describe(
    services: Services, directory: LogDirectory, asked: set[TopicPartition] | None, version: int
) -> Any:
    space = None
    if directory.failure is None and version >= SPACE_FROM:
        try:
            space = await directory.space()
        except OSError as error:
            logger.warning("the volume of %s does not tell its space: %s", directory.path, error)
            return _failed(directory)
    if directory.failure is not None:
        return _failed(directory)
    found = [pair async for pair in each(_replicas(services, directory)) if asked is None or pair[0] in asked]
    topics = by_topic(found, itemgetter(0))
    return _DIRECTORY(
        error_code=ErrorCode.NONE,
        log_dir=directory.path,
        topics=[_TOPIC(name=topic, partitions=[entry for _, entry in group]) for topic, group in topics.items()],
        total_bytes=-1 if space is None else space.total,
        usable_bytes=-1 if space is None else space.usable,
    )


def _failed(directory: LogDirectory) -> Any:
    return _DIRECTORY(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path, topics=[])


def _replicas(services: Services, directory: LogDirectory) -> Iterator[tuple[TopicPartition, Any]]:
    logs = services.replicas.logs
    for log in logs.logs():
        name = log.topic_partition
        if logs.home_of(name) is directory:
            yield name, _entry(name, log.size_bytes, max(log.high_watermark - log.log_end_offset, 0))
        moving = logs.dir_moves.under_way(name)
        if moving is not None and moving.target is directory and moving.copy is not None:
            yield name, _entry(name, moving.copy.size_bytes, moving.lag, is_copy=True)


def _entry(name: TopicPartition, size: int, lag: int, *, is_copy: bool = False) -> Any:
    return _PARTITION(partition_index=name.partition, partition_size=size, offset_lag=lag, is_future_key=is_copy)
