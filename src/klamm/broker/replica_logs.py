"""The logs of the partitions that a LeaderAndIsr names: opened, created, or set aside if they belong to another life.

Nothing is deleted here (design D19, ADR 0010). A log that was found on the disk is compared with the topic before its
first order is obeyed: the topic may have been deleted and created again while this broker was down, or its StopReplica
never came. A log of another life is renamed and reported. A topic that begins anew never shows records of its former
life, and a topic that only lost its state keeps its records.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import validate_name
from klamm.log.directories.topic_lives import TopicLife, may_belong
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.control import PartitionOrder
from klamm.model.errors import ErrorCode, KafkaError, ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.zookeeper.znodes import topic

log = logging.getLogger(__name__)

Opened = dict[TopicPartition, Log | Exception]


class ReplicaLogs:
    def __init__(self, logs: LogManager, configs: TopicConfigs) -> None:
        self._logs = logs
        self._configs = configs

    async def open(self, orders: Sequence[PartitionOrder], in_use: Collection[TopicPartition]) -> Opened:
        """The log of each partition, or the error. A partition with an error keeps its old epoch, so that the order can
        be repeated. `in_use` are the partitions that have obeyed an order in this run."""
        found: Opened = {}
        first = [order for order in orders if order.partition not in in_use]
        try:
            lives = await self._lives(order.partition.topic for order in first)
        except ZooKeeperError as error:
            found |= {order.partition: error for order in first}
            first, lives = [], {}
        for order in first:
            await self._set_aside_former_life(order, lives.get(order.partition.topic))
        missing: list[PartitionOrder] = []
        for order in orders:
            existing = self._logs.get(order.partition)
            if order.partition in found:
                continue
            if existing is not None:
                found[order.partition] = existing
            elif (error_of_name := _unfit_for_a_directory(order.partition)) is not None:
                found[order.partition] = error_of_name
            else:
                missing.append(order)
        found |= await self._create(missing)
        await self._logs.lives.remember(
            {
                order.partition: lives[order.partition.topic]
                for order in first
                if order.partition.topic in lives and not isinstance(found[order.partition], Exception)
            }
        )
        return found

    async def _create(self, missing: Sequence[PartitionOrder]) -> Opened:
        topics, generation = {order.partition.topic for order in missing}, self._configs.generation
        if not missing:
            return {}
        try:
            configs = await self._configs.read(topics)
            created = await self._logs.create_many(
                (order.partition, configs[order.partition.topic], order.is_new) for order in missing
            )
            if self._configs.generation != generation:  # a change during the await found no log to change
                for name, config in (await self._configs.read(topics)).items():
                    self._logs.reconfigure(name, config)
        except ZooKeeperError as error:
            return {order.partition: error for order in missing}
        return dict(created)

    async def _lives(self, topics: Iterable[str]) -> dict[str, TopicLife]:
        """The lives of those topics that exist. From an older tree, a topic would be taken for its former life, and
        the configuration that is read next would lack what the topic was created with."""
        names = sorted(set(topics))
        if not names:
            return {}
        tree, *nodes = await self._configs.nodes([topic.PARENT, *(topic.path(name) for name in names)], synced=True)
        if tree is None:
            return {}
        return {
            name: TopicLife(tree.stat.czxid, node.stat.czxid)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    async def _set_aside_former_life(self, order: PartitionOrder, now: TopicLife | None) -> None:
        name = order.partition
        existing = self._logs.get(name)
        if existing is None or existing.log_end_offset == 0:
            return
        if may_belong(self._logs.lives.of(name), now, is_new=order.is_new):
            return
        try:
            path = await self._logs.set_aside(name)
        except KafkaError as error:
            log.error("%s: %s", name, error)  # its directory is offline now, and the answer says so
        else:
            log.error("%s: its log belongs to an earlier topic of that name and is set aside as %s", name, path)


def _unfit_for_a_directory(partition: TopicPartition) -> KafkaError | None:
    """The topic's name becomes part of a path: an order must not be able to choose another directory."""
    try:
        validate_name(partition.topic)
    except KafkaError as error:
        return error
    if partition.partition < 0:
        return KafkaError(ErrorCode.INVALID_PARTITIONS, f"invalid partition number {partition.partition}")
    return None
