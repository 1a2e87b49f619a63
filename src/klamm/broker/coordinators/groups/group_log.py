"""Writes the records of groups to their partition of `__consumer_offsets`, and says how an append ended.

A record is in the log when `append` returns, so records are in the order of the calls, and a commit knows its place
before it is acknowledged. `acknowledged` waits for the followers. A batch of offsets is encoded before it is decided
whether the group takes them, because a large one takes a while, off the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from klamm.broker.appends import NOTHING_PREPARED, Appends
from klamm.broker.coordinators.groups.offsets import Offsets
from klamm.broker.coordinators.groups.records import (
    StoredGroup,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    versions_for,
)
from klamm.broker.coordinators.state_loading import wait_until_replicated
from klamm.broker.handlers.slices import Pool, at_once
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log import Log
from klamm.log.validation import AppendOrigin, PreparedAppend
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import CONSUMER_OFFSETS, ProducerId, TopicPartition
from klamm.model.ports import Clock
from klamm.wire.records import Record, build_batch

_COMMIT_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
_GROUP_ERRORS: Final = {
    **_COMMIT_ERRORS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
}

ENCODED_AT_ONCE_MAX: Final = 500
"""Offsets: a few milliseconds."""

log = logging.getLogger(__name__)


def commit_error(appended: ErrorCode) -> ErrorCode:
    """What a client hears when its commit could not be written."""
    return _COMMIT_ERRORS.get(appended, appended)


def group_error(appended: ErrorCode) -> ErrorCode:
    """What members hear when the state of their group could not be written."""
    return _GROUP_ERRORS.get(appended, appended)


class Producer(NamedTuple):
    """The producer of the transaction that the offsets belong to."""

    id: ProducerId
    epoch: int


class Appended(NamedTuple):
    error: ErrorCode
    record_offset: int = -1
    """The offset of the first record of the batch."""
    required: int = -1
    """The high watermark that acknowledges it."""
    partition: int = -1


class EncodedBatch(NamedTuple):
    """What is appended at once. The offsets of a request are in one batch, so they count together."""

    data: bytes
    prepared: Mapping[TopicPartition, PreparedAppend | KafkaError] = NOTHING_PREPARED
    """A large batch is checked in advance, too."""


class GroupLog:
    def __init__(
        self, config: BrokerConfig, clock: Clock, appends: Appends, replicas: ReplicaManager, pool: Pool = at_once
    ) -> None:
        self._config = config
        self._pool = pool
        self._clock = clock
        self._appends = appends
        self._replicas = replicas
        self._versions = versions_for(config.inter_broker_protocol_version)

    def log_of(self, partition: int) -> Log | None:
        """The local log, if this broker leads the partition."""
        held = self._replicas.partitions.get(TopicPartition(CONSUMER_OFFSETS, partition))
        return held.log if held is not None and held.is_leader else None

    def append_group(self, partition: int, group_id: str, value: StoredGroup) -> Appended:
        record = (encode_group_key(group_id), encode_group(value, self._versions.group_value))
        return self._append(partition, EncodedBatch(self._batch([record])), self._config.offsets_commit_required_acks)

    async def encode_offsets(
        self, partition: int, group_id: str, offsets: Offsets, producer: Producer | None = None
    ) -> EncodedBatch:
        """Awaits nothing unless there are many offsets."""

        def encode() -> bytes:
            version = self._versions.offset_value
            return self._batch(
                [(encode_offset_key(group_id, name), encode_offset(value, version)) for name, value in offsets.items()],
                producer,
            )

        if len(offsets) <= ENCODED_AT_ONCE_MAX:
            return EncodedBatch(encode())
        data = await self._pool(encode)
        return EncodedBatch(data, await self._appends.prepare([(TopicPartition(CONSUMER_OFFSETS, partition), data)]))

    def append_offsets(self, partition: int, batch: EncodedBatch) -> Appended:
        return self._append(partition, batch, self._config.offsets_commit_required_acks)

    def append_tombstones(
        self, partition: int, group_id: str, offsets: Iterable[TopicPartition], *, group: bool = False, acks: int = 0
    ) -> Appended | None:
        """None if there is nothing to write. What expired needs no acknowledgement: if its tombstone is lost, the
        offset comes back with the next load, and expires again."""
        records: list[tuple[bytes, bytes | None]] = [(encode_offset_key(group_id, name), None) for name in offsets]
        if group:
            records.append((encode_group_key(group_id), None))
        if not records:
            return None
        appended = self._append(partition, EncodedBatch(self._batch(records)), acks)
        if appended.error is not ErrorCode.NONE:
            log.warning("group %r: cannot write %d tombstones: %s", group_id, len(records), appended.error.name)
        return appended

    async def replicated(self, partition: int, end: int, is_wanted: Callable[[], bool]) -> None:
        """Wait until all replicas in sync have everything below `end`."""
        name = TopicPartition(CONSUMER_OFFSETS, partition)
        await wait_until_replicated(self._replicas, name, end, is_wanted)

    def _batch(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> bytes:
        now_ms, codec = self._clock.wall_ms(), self._config.offsets_topic_compression_codec
        made = [Record(key, value, now_ms) for key, value in records]
        if producer is None:
            return build_batch(made, codec=codec)
        return build_batch(
            made,
            codec=codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )

    def _append(self, partition: int, batch: EncodedBatch, acks: int) -> Appended:
        if self.log_of(partition) is None:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        name = TopicPartition(CONSUMER_OFFSETS, partition)
        (result,), required = self._appends.append_now(
            [(name, batch.data)], acks=acks, internal=True, origin=AppendOrigin.COORDINATOR, prepared=batch.prepared
        )
        if result.error is not ErrorCode.NONE:
            return Appended(result.error)
        return Appended(ErrorCode.NONE, result.base_offset, required[name], partition)

    async def acknowledged(self, appended: Appended) -> ErrorCode:
        """The outcome for the configured acks."""
        if appended.error is not ErrorCode.NONE:
            return appended.error
        name = TopicPartition(CONSUMER_OFFSETS, appended.partition)
        acks, timeout_ms = self._config.offsets_commit_required_acks, self._config.offsets_commit_timeout_ms
        failures = await self._appends.acknowledged({name: appended.required}, acks, timeout_ms)
        return failures.get(name, ErrorCode.NONE)
