"""Offsets in ZooKeeper: what OffsetCommit and OffsetFetch did before Kafka 0.9 and still do in version 0.

No group, generation or coordinator is involved: any broker answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from klamm.broker.coordinators.groups.offsets import Offsets
from klamm.broker.coordinators.groups.records import Offset
from klamm.broker.metadata_cache import MetadataCache
from klamm.model.errors import ErrorCode, NoNode, ZNodeError, ZooKeeperError
from klamm.model.ids import TopicPartition
from klamm.model.ports import ZooKeeper
from klamm.zookeeper.znodes import consumer_offset

log = logging.getLogger(__name__)


class ZooKeeperOffsets:
    def __init__(self, zk: ZooKeeper, metadata_max: int) -> None:
        self._zk = zk
        self._metadata_max = metadata_max

    async def commit(self, group_id: str, offsets: Offsets) -> dict[TopicPartition, ErrorCode]:
        if not consumer_offset.is_valid(group_id):
            return dict.fromkeys(offsets, ErrorCode.INVALID_GROUP_ID)
        return {name: await self._commit(group_id, name, value) for name, value in offsets.items()}

    async def _commit(self, group_id: str, name: TopicPartition, value: Offset) -> ErrorCode:
        """The metadata is limited as elsewhere, but ZooKeeper has no place for it."""
        if len(value.metadata) > self._metadata_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        path, data = consumer_offset.path(group_id, name), consumer_offset.encode(value.offset)
        try:
            try:
                await self._zk.set(path, data)
            except NoNode:
                await self._zk.ensure_path(path)
                await self._zk.set(path, data)
        except ZooKeeperError as error:
            log.warning("cannot commit %s of group %r to ZooKeeper: %s", name, group_id, error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.NONE

    async def fetch(
        self, group_id: str, partitions: Sequence[TopicPartition], metadata: MetadataCache
    ) -> dict[TopicPartition, tuple[Offset, ErrorCode]]:
        unknown = (Offset(-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = dict.fromkeys(partitions, unknown)
        known = [name for name in partitions if name in metadata and consumer_offset.is_valid(group_id)]
        paths = [consumer_offset.path(group_id, name) for name in known]
        try:
            nodes = await self._zk.get_many(paths)
        except ZooKeeperError as error:
            log.warning("cannot fetch offsets of group %r from ZooKeeper: %s", group_id, error)
            return found | dict.fromkeys(known, (Offset(-1), ErrorCode.UNKNOWN_SERVER_ERROR))
        for name, path, node in zip(known, paths, nodes, strict=True):
            if node is not None:
                try:
                    found[name] = Offset(consumer_offset.decode(path, node.data)), ErrorCode.NONE
                except ZNodeError as error:
                    log.warning("%s", error)
        return found
