"""Committed offsets: commits of members and of transactions, fetches, deletions, expiry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from klamm.broker.coordinators.groups import rebalance
from klamm.broker.coordinators.groups.execution import Execution
from klamm.broker.coordinators.groups.expiry import MINUTE_MS, expired_offsets, is_over
from klamm.broker.coordinators.groups.group import GROUP_BYTES, OFFSET_BYTES, Group, State
from klamm.broker.coordinators.groups.group_log import Appended, EncodedBatch, GroupLog, Producer, commit_error
from klamm.broker.coordinators.groups.offsets import Offsets
from klamm.broker.coordinators.groups.records import Offset
from klamm.broker.coordinators.groups.registry import GroupRegistry
from klamm.broker.coordinators.groups.subscription import CONSUMER
from klamm.broker.handlers.slices import Pace, each
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.guard import Guard
from klamm.model.ids import ProducerId, TopicPartition

TOMBSTONES_PER_SLICE: Final = 500
LOOKS_PER_SLICE: Final = 5_000
"""Offsets that are looked at between two turns of the loop: a few milliseconds."""
TOMBSTONE_LOOKS: Final = 10
WRITE_LOOKS: Final = 150
"""What a tombstone and a batch of them cost, in looks."""
NO_OFFSET: Final = Offset(-1)

Errors = dict[TopicPartition, ErrorCode]


class Committer(NamedTuple):
    """Who commits, as the request says."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class Commits:
    def __init__(
        self, config: BrokerConfig, registry: GroupRegistry, group_log: GroupLog, execution: Execution, guard: Guard
    ) -> None:
        self._config = config
        self._registry = registry
        self._log = group_log
        self._execution = execution
        self._guard = guard
        self.committed = 0
        self.expired = 0
        self.deleted = 0

    # --- commits ---

    async def commit(self, group_id: str | None, committer: Committer, offsets: Offsets) -> Errors:
        """OffsetCommit. Raises KafkaError for all partitions alike."""
        accepted, errors = await self._limit_metadata(offsets)
        partition = self._registry.check(group_id, may_be_empty=True)
        assert group_id is not None
        self._refuse_without_room(group_id, accepted, errors)
        batch = await self._log.encode_offsets(partition, group_id, accepted)
        self._registry.check(group_id, may_be_empty=True)
        # From here to the append nothing is awaited.
        group = self._registry.get(group_id)
        if group is None:
            if committer.generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            group = self._registry.create(group_id)
        try:
            error = group.judge_commit(committer.member_id, committer.instance_id, committer.generation)
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
            if committer.member_id in group.members:
                turn = self._execution.turn()
                rebalance.renew_session(group.members[committer.member_id], turn)
                self._execution.carry_out(group, turn)
            if accepted:
                outcome = await self._append(group, accepted, batch)
                errors.update(dict.fromkeys(accepted, outcome))
            return errors
        finally:
            self.forget_if_void(group)

    async def _append(self, group: Group, offsets: Offsets, batch: EncodedBatch) -> ErrorCode:
        appended = self._log.append_offsets(group.partition, batch)
        if appended.error is ErrorCode.NONE:
            group.offsets.prepare(offsets)
        error = await self._log.acknowledged(appended)
        if self._registry.holds(group):
            if error is ErrorCode.NONE:
                group.offsets.acknowledged(offsets, appended.record_offset)
            else:
                group.offsets.failed(offsets)
            self._registry.weigh(group)
        if error is ErrorCode.NONE:
            self.committed += len(offsets)
        return commit_error(error)

    async def commit_transactional(
        self, group_id: str | None, committer: Committer, producer: Producer, offsets: Offsets
    ) -> Errors:
        """TxnOffsetCommit: the offsets count when the transaction's marker commits them."""
        accepted, errors = await self._limit_metadata(offsets)
        partition = self._registry.check(group_id)
        assert group_id is not None
        self._refuse_without_room(group_id, accepted, errors)
        batch = await self._log.encode_offsets(partition, group_id, accepted, producer)
        self._registry.check(group_id)
        # From here to the append nothing is awaited.
        group = self._registry.get(group_id)
        if group is None:
            if committer.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._registry.create(group_id)
        try:
            error = group.judge_transactional_commit(committer.member_id, committer.instance_id, committer.generation)
            if error is not ErrorCode.NONE:
                raise KafkaError(error)
            if accepted:
                outcome = await self._append_transactional(group, producer, accepted, batch)
                errors.update(dict.fromkeys(accepted, outcome))
            return errors
        finally:
            self.forget_if_void(group)

    async def _append_transactional(
        self, group: Group, producer: Producer, offsets: Offsets, batch: EncodedBatch
    ) -> ErrorCode:
        """Once in the log, the offsets wait for the marker, even if they are not acknowledged in time: a load of the
        log would find them, too."""
        appended = self._log.append_offsets(group.partition, batch)
        if appended.error is ErrorCode.NONE:
            group.offsets.stage(producer.id, offsets, appended.record_offset)
            self._registry.open_transaction(producer.id, group.id)
            self._registry.weigh(group)
        error = await self._log.acknowledged(appended)
        if error is ErrorCode.NONE:
            self.committed += len(offsets)
        return commit_error(error)

    def complete_transaction(self, offsets_partition: int, producer_id: ProducerId, committed: bool) -> None:
        """The marker is in the log of the partition. While it is being loaded, the load reads the marker."""
        for name in list(self._registry.open_transactions.get(producer_id, ())):
            group = self._registry.get(name)
            if group is not None and group.partition == offsets_partition:
                group.offsets.end_transaction(producer_id, committed=committed)
                self._registry.weigh(group)
                self._registry.close_transaction(producer_id, name)

    def forget_if_void(self, group: Group) -> None:
        """A refused request leaves no group behind: strangers can ask for any number of names."""
        if group.generation == 0 and is_over(group):
            self._registry.forget(group)

    async def _limit_metadata(self, offsets: Offsets) -> tuple[dict[TopicPartition, Offset], Errors]:
        limit = self._config.offset_metadata_max_bytes
        accepted: dict[TopicPartition, Offset] = {}
        errors: Errors = {}
        async for partition, value in each(offsets.items()):
            if len(value.metadata.encode("utf-16-le", "surrogatepass")) // 2 > limit:  # Kafka counts UTF-16 units
                errors[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                accepted[partition] = value
        return accepted, errors

    def _refuse_without_room(self, group_id: str, accepted: dict[TopicPartition, Offset], errors: Errors) -> None:
        """A full memory takes no offsets of further partitions. Those that are there may move on."""
        if self._registry.has_room(GROUP_BYTES + OFFSET_BYTES * len(accepted)):
            return
        group = self._registry.get(group_id)
        new = [name for name in accepted if group is None or name not in group.offsets.committed]
        for name in new:
            del accepted[name]
            errors[name] = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        self._registry.refused += len(new)

    # --- fetches ---

    def fetch(
        self, group_id: str | None, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, tuple[Offset, ErrorCode]]:
        """OffsetFetch; all partitions with an offset if none are named. Raises KafkaError of the whole request."""
        self._registry.check(group_id, may_be_empty=True)
        assert group_id is not None
        group = self._registry.get(group_id)
        if group is None or group.is_in(State.DEAD):
            return dict.fromkeys(partitions or (), (NO_OFFSET, ErrorCode.NONE))
        found = {}
        for name in list(group.offsets.committed) if partitions is None else partitions:
            if require_stable and group.offsets.is_unstable(name):
                found[name] = NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
            else:
                found[name] = group.offsets.value(name) or NO_OFFSET, ErrorCode.NONE
        return found

    # --- removal ---

    async def delete(self, group_id: str | None, partitions: Collection[TopicPartition]) -> Errors:
        """OffsetDelete, answered when it is replicated. Raises KafkaError of the whole request."""
        self._registry.check(group_id)
        group = self._registry.get(group_id or "")
        if group is None or group.is_in(State.DEAD):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_in(State.EMPTY) and group.protocol_type != CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        is_empty = group.is_in(State.EMPTY)
        errors: Errors = {}
        removed: list[TopicPartition] = []
        async for name in each(partitions):
            is_subscribed = not is_empty and group.is_subscribed_to(name.topic)
            errors[name] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_subscribed else ErrorCode.NONE
            if not is_subscribed and group.offsets.has_record(name):
                removed.append(name)
        error = await self._remove(group, removed)
        if error is not ErrorCode.NONE:
            raise KafkaError(commit_error(error))
        return errors

    async def _remove(self, group: Group, partitions: Sequence[TopicPartition]) -> ErrorCode:
        """Write tombstones, and forget what they remove, in slices. Answers when they are replicated."""
        acks = self._config.offsets_commit_required_acks
        appended: Appended | None = None
        for start in range(0, len(partitions), TOMBSTONES_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            if not self._registry.holds(group):
                return ErrorCode.NOT_COORDINATOR
            some = partitions[start : start + TOMBSTONES_PER_SLICE]
            appended = self._log.append_tombstones(group.partition, group.id, some, acks=acks)
            if appended is None or appended.error is not ErrorCode.NONE:
                break
            self._forget(group, some)
            self.deleted += len(some)
        return ErrorCode.NONE if appended is None else await self._log.acknowledged(appended)

    def _forget(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        """Offsets go, and with the last one the group, if nothing else is left of it."""
        producers = list(group.offsets.transactional)
        group.offsets.remove(partitions)
        self._registry.weigh(group)
        for producer in producers:
            if producer not in group.offsets.transactional:
                self._registry.close_transaction(producer, group.id)
        if is_over(group):
            self._end(group)
            self._log.append_tombstones(group.partition, group.id, (), group=group.generation > 0)

    def _end(self, group: Group) -> None:
        turn = self._execution.turn()
        rebalance.die(group, ErrorCode.COORDINATOR_NOT_AVAILABLE, turn)
        self._registry.forget(group)
        self._execution.carry_out(group, turn)

    async def delete_group(self, group: Group) -> ErrorCode:
        """An empty group, with all its offsets. If its tombstones cannot be written, it stays; if they are not
        replicated in time, it is unknown whether it comes back with a fail-over, and the client asks again."""
        acks = self._config.offsets_commit_required_acks
        while len(left := group.offsets.partitions()) > TOMBSTONES_PER_SLICE:  # the last ones go with the group
            error = await self._remove(group, sorted(islice(left, TOMBSTONES_PER_SLICE)))
            if error is not ErrorCode.NONE:
                return commit_error(error)
            await asyncio.sleep(0)
            if not (self._registry.holds(group) and group.is_in(State.EMPTY)):
                return ErrorCode.NON_EMPTY_GROUP if self._registry.holds(group) else ErrorCode.NOT_COORDINATOR
        removed = sorted(left)
        appended = self._log.append_tombstones(
            group.partition, group.id, removed, group=group.generation > 0, acks=acks
        )
        if appended is not None and appended.error is not ErrorCode.NONE:
            return commit_error(appended.error)
        self._end(group)
        self.deleted += len(removed)
        return ErrorCode.NONE if appended is None else commit_error(await self._log.acknowledged(appended))

    def partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """Topics were deleted: their offsets go, or a new topic of the same name would be read from the middle."""
        gone = frozenset(partitions)
        self._guard.start("group-offsets", "of deleted topics", lambda: self._forget_partitions(gone))

    async def _forget_partitions(self, gone: frozenset[TopicPartition]) -> None:
        pace = Pace(LOOKS_PER_SLICE)
        async for group in self._each_group(pace):
            removed = sorted(gone & group.offsets.partitions())
            for start in range(0, len(removed), TOMBSTONES_PER_SLICE):
                some = removed[start : start + TOMBSTONES_PER_SLICE]
                if self._registry.holds(group):
                    self._log.append_tombstones(group.partition, group.id, some)
                    self._forget(group, some)
                await pace.spend(WRITE_LOOKS + TOMBSTONE_LOOKS * len(some))

    async def run_expiry(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire()

    async def expire(self) -> None:
        retention_ms = self._config.offsets_retention_minutes * MINUTE_MS
        pace = Pace(LOOKS_PER_SLICE)
        async for group in self._each_group(pace):
            while self._registry.holds(group):
                now_ms = self._execution.turn().now_ms
                expired = expired_offsets(group, now_ms, retention_ms)[:TOMBSTONES_PER_SLICE]
                appended = self._log.append_tombstones(group.partition, group.id, expired)
                if appended is not None and appended.error is not ErrorCode.NONE:
                    break
                self._forget(group, expired)
                self.expired += len(expired)
                if expired:
                    await pace.spend(WRITE_LOOKS + TOMBSTONE_LOOKS * len(expired))
                if len(expired) < TOMBSTONES_PER_SLICE:
                    break

    async def _each_group(self, pace: Pace) -> AsyncIterator[Group]:
        """In slices, so that groups may change or go meanwhile."""
        for group in list(self._registry.groups.values()):
            await pace.spend(1 + group.offsets.count)
            if self._registry.holds(group):
                yield group
