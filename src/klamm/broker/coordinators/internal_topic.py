"""The topics that hold the coordinators' state: which partition a key belongs to, and how the topic comes to exist.

Every broker of a cluster must hash alike, so the number of partitions is the real one, from ZooKeeper. The configured
number counts only when the topic is created. It is read anew when a partition is loaded and when the topic was not
there before, because a number read once at the start may be that of a topic that did not exist yet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from klamm.admin.placement import RackMode
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.topics import NewTopic, TopicAdmin
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition

INT_MIN: Final = -(2**31)
UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
"""Without a mark of its byte order."""
KEY_BYTES_MAX: Final = 32_767
"""What a string in the key of a record can hold. A request can hold more, and to hash that would hold the loop."""


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, wrapping at 32 bits.

    >>> java_hash("test"), java_hash("polygenelubricants")
    (3556498, -2147483648)
    """
    units = text.encode() if text.isascii() else memoryview(text.encode(UTF_16, "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for(key: str, partitions: int) -> int:
    """The absolute value of the smallest integer does not exist in Java; Kafka takes 0 for it."""
    value = java_hash(key)
    return 0 if value == INT_MIN else abs(value) % partitions


def fits_a_key(text: str) -> bool:
    return len(text) <= KEY_BYTES_MAX and len(text.encode()) <= KEY_BYTES_MAX


class TopicShape(NamedTuple):
    """What a coordinator's topic looks like when this broker creates it."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def offsets_shape(config: BrokerConfig) -> TopicShape:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }
    return TopicShape(
        CONSUMER_OFFSETS, config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, configs
    )


def transactions_shape(config: BrokerConfig) -> TopicShape:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(config.transaction_state_log_min_isr),
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
        "unclean.leader.election.enable": "false",
    }
    return TopicShape(
        TRANSACTION_STATE,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        configs,
    )


class InternalTopic:
    def __init__(self, shape: TopicShape, metadata: MetadataCache, topics: TopicAdmin) -> None:
        self.name = shape.name
        self._shape = shape
        self._metadata = metadata
        self._topics = topics
        self._count: int | None = None

    @property
    def exists(self) -> bool:
        """This broker has metadata of the topic."""
        return self._metadata.topic(self.name) is not None

    def known_partition_of(self, key: str) -> TopicPartition | None:
        """None before the number of partitions was read: then this broker coordinates nothing yet."""
        return None if self._count is None else TopicPartition(self.name, partition_for(key, self._count))

    async def partition_of(self, key: str) -> TopicPartition:
        """Raises INVALID_REQUEST for a key that is too long, COORDINATOR_NOT_AVAILABLE while the topic does not exist,
        and ZooKeeperError."""
        if not fits_a_key(key):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a key of more than {KEY_BYTES_MAX} bytes")
        if self._count is None or not self.exists:
            await self.read_count()
        found = self.known_partition_of(key)
        if found is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name} does not exist yet")
        return found

    async def read_count(self) -> None:
        """Raises ZooKeeperError and ZNodeError."""
        self._count = await self._topics.partition_count(self.name)

    async def ensure(self) -> None:
        """Create the topic unless it exists. Raises INVALID_REPLICATION_FACTOR with too few live brokers, and
        ZooKeeperError."""
        shape = self._shape
        if await self._topics.partition_count(self.name) is not None:
            return
        new = NewTopic(self.name, shape.partitions, shape.replication_factor, configs=shape.configs)
        brokers = await self._topics.placement_brokers(self._metadata.brokers.values())
        try:
            await self._topics.create(self._topics.plan(new, brokers, RackMode.SAFE))
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
