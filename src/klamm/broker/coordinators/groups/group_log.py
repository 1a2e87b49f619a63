"""Writes the records of groups to their partition of `__consumer_offsets`, and says how an append ended.

A record is in the log when `append` returns, so records are in the order of the calls, and a commit knows its place
before it is acknowledged. `acknowledged` waits for the followers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.broker.appends import Appends
from klamm.broker.coordinators.groups.offsets import Offsets
from klamm.broker.coordinators.groups.records import (
    StoredGroup,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    versions_for,
)
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log import Log
from klamm.log.validation import AppendOrigin
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
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


class GroupLog:
    def __init__(self, config: BrokerConfig, clock: Clock, appends: Appends, replicas: ReplicaManager) -> None:
        self._config = config
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
        return self._append(partition, [record], self._config.offsets_commit_required_acks)

    def append_offsets(
        self, partition: int, group_id: str, offsets: Offsets, producer: Producer | None = None
    ) -> Appended:
        """All offsets of a request in one batch, so that they count together."""
        version = self._versions.offset_value
        records = [
            (encode_offset_key(group_id, name), encode_offset(value, version)) for name, value in offsets.items()
        ]
        return self._append(partition, records, self._config.offsets_commit_required_acks, producer)

    def append_tombstones(
        self, partition: int, group_id: str, offsets: Sequence[TopicPartition], *, group: bool
    ) -> None:
        """A tombstone that is lost comes back with the next load, and then expires again."""
        records: list[tuple[bytes, bytes | None]] = [(encode_offset_key(group_id, name), None) for name in offsets]
        if group:
            records.append((encode_group_key(group_id), None))
        if records:
            appended = self._append(partition, records, 0)
            if appended.error is not ErrorCode.NONE:
                log.warning("group %r: cannot write %d tombstones: %s", group_id, len(records), appended.error.name)

    def _append(
        self,
        partition: int,
        records: Sequence[tuple[bytes, bytes | None]],
        acks: int,
        producer: Producer | None = None,
    ) -> Appended:
        if self.log_of(partition) is None:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        now_ms, codec = self._clock.wall_ms(), self._config.offsets_topic_compression_codec
        made = [Record(key, value, now_ms) for key, value in records]
        if producer is None:
            batch = build_batch(made, codec=codec)
        else:
            batch = build_batch(
                made,
                codec=codec,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=0,
                transactional=True,
            )
        name = TopicPartition(CONSUMER_OFFSETS, partition)
        (result,), required = self._appends.append_now(
            [(name, batch)], acks=acks, internal=True, origin=AppendOrigin.COORDINATOR
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
