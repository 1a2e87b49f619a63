"""The produce path: append to the leaders on this broker, and for acks=all wait until each append is committed.

acks=1 is answered after the local append, and after a flush if flush.messages requires one. acks=-1 is answered when
the high watermark has passed every partition's last offset too, or when the timeout is over. A detected duplicate waits
like its original, because an immediate answer would acknowledge data that is not replicated yet. A leader that has not
heard from ZooKeeper for too long acknowledges nothing: before the append it refuses with "not leader"; after the append
it answers "timed out" without waiting further, because the outcome is unknown and another may lead already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from klamm.broker.partition import Partition
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_traffic import TopicTraffic
from klamm.log.log_results import AppendInfo
from klamm.log.producers.producer_state import ProducerState
from klamm.log.validation import AppendOrigin, InvalidRecords, PreparedAppend, may_be_costly
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.ports import Buffer, Clock
from klamm.model.requests import ClientConnection
from klamm.wire.batch import iter_batches
from klamm.wire.produce import ProduceResult

ACKS_ALL: Final = -1
ENTRIES_PER_SLICE: Final = 200
BYTES_PER_SLICE: Final = 4 << 20
OUTCOMES_PER_SLICE: Final = 1_000
SECONDS_PER_SLICE: Final = 0.005
"""What an append costs depends on its records, so a slice also ends by time."""
NOTHING_PREPARED: Final[Mapping[TopicPartition, PreparedAppend | KafkaError]] = {}


class Appends:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._producers_max = replicas.config.max_producers_per_partition
        self.traffic = TopicTraffic()
        replicas.gauges.led.when_gone.append(self.traffic.forget)
        self.bytes_in = 0
        self.messages_in = 0
        self.failed_requests = 0
        self.refused_producers = 0
        """Batches of producers that were refused because a partition remembers too many."""
        self._staging: dict[TopicPartition, asyncio.Event] = {}
        """The partitions to which a large batch is being written."""

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, Buffer]],
        *,
        acks: int,
        timeout_ms: int,
        internal: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        client: ClientConnection | None = None,
    ) -> list[ProduceResult]:
        """A client's costly batches are prepared first, off the loop, and large ones are written there, too. A large
        request is appended in slices; its client has no other request meanwhile, so its order is kept."""
        may_prepare = origin is AppendOrigin.CLIENT and not internal
        # One by one: a request may name a partition twice, and what was prepared for one batch is not the other's.
        prepared = [
            await self.prepare([entry]) if may_prepare and may_be_costly(entry[1]) else NOTHING_PREPARED
            for entry in entries
        ]
        results: list[ProduceResult] = []
        required: dict[TopicPartition, int] = {}
        turn = _Turn(self._replicas.clock)
        for entry, prepared_entry in zip(entries, prepared, strict=True):
            name, records = entry
            if turn.is_over():
                await asyncio.sleep(0)
                turn = _Turn(self._replicas.clock)
            while name in self._staging:
                await self._staging[name].wait()
            ready = prepared_entry.get(name)
            if isinstance(ready, PreparedAppend) and ready.is_large:
                appended, needed = await self._append_large(name, records, ready, acks)
            else:
                appended, needed = self.append_now(
                    [entry], acks=acks, internal=internal, origin=origin, prepared=prepared_entry
                )
            turn.add(len(records))
            results += appended
            required |= needed
        failures = await self.acknowledged(required, acks, timeout_ms, client)
        return [_after_wait(result, failures) for result in results] if failures else results

    async def _append_large(
        self, name: TopicPartition, records: Buffer, large: PreparedAppend, acks: int
    ) -> tuple[list[ProduceResult], dict[TopicPartition, int]]:
        """Other appends to the partition wait. Leader, epoch, ISR and producer are checked after the wait, in the step
        of the append; if another log has taken the place of this one, that one gets the batch."""
        self._staging[name] = done = asyncio.Event()
        ready: PreparedAppend | KafkaError = large
        try:
            held = self._replicas.partitions.get(name)
            if held is not None and held.log is not None:
                try:
                    ready = await held.log.stage(large)
                except KafkaError as error:
                    ready = error
            return self.append_now([(name, records)], acks=acks, prepared={name: ready})
        finally:
            if isinstance(ready, PreparedAppend):
                ready.drop()
            del self._staging[name]
            done.set()

    def append_now(
        self,
        entries: Sequence[tuple[TopicPartition, Buffer]],
        *,
        acks: int,
        internal: bool = False,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        prepared: Mapping[TopicPartition, PreparedAppend | KafkaError] = NOTHING_PREPARED,
    ) -> tuple[list[ProduceResult], dict[TopicPartition, int]]:
        """Append to the local logs. Returns, with the results, the offset below which each log must be acknowledged.
        `internal` allows writes to the coordinators' topics, which clients may not write."""
        if acks not in (0, 1, ACKS_ALL):
            return [ProduceResult(name, ErrorCode.INVALID_REQUIRED_ACKS) for name, _ in entries], {}
        results: list[ProduceResult] = []
        required: dict[TopicPartition, int] = {}
        for name, records in entries:
            if name.topic in INTERNAL_TOPICS and not internal:
                message = f"Cannot append to internal topic {name.topic}"
                results.append(ProduceResult(name, ErrorCode.INVALID_TOPIC_EXCEPTION, message=message))
                continue
            try:
                partition, info = self._append(name, prepared.get(name, records), acks, origin)
            except KafkaError as error:
                results.append(self._failed(name, error))
                continue
            except Exception as error:  # it concerns this partition; the others of the request are appended
                self._replicas.guard.record("append", name, error)
                results.append(self._failed(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the append failed")))
                continue
            if not info.duplicate:
                self.bytes_in += len(records)
                count = info.last_offset - info.first_offset + 1
                self.messages_in += count
                topic = self.traffic.of(name.topic)
                topic.bytes_in += len(records)
                topic.messages_in += count
                self._replicas.after_append(partition)
            offsets = (info.first_offset, info.log_append_time, info.log_start_offset)
            results.append(ProduceResult(name, ErrorCode.NONE, *offsets))
            required[name] = info.last_offset + 1
        return results, required

    async def acknowledged(
        self,
        required: Mapping[TopicPartition, int],
        acks: int,
        timeout_ms: int,
        client: ClientConnection | None = None,
    ) -> dict[TopicPartition, ErrorCode]:
        """Wait for what `append_now` required; returns the failures."""
        if acks != ACKS_ALL:
            required = self._unflushed(required) if acks else {}
        return await self._wait(required, acks, timeout_ms, client) if required else {}

    async def prepare(
        self, entries: Sequence[tuple[TopicPartition, Buffer]]
    ) -> dict[TopicPartition, PreparedAppend | KafkaError]:
        """By partition: a costly batch, or why it is refused. Whether this broker leads is asked again afterwards."""
        found: dict[TopicPartition, PreparedAppend | KafkaError] = {}
        for name, records in entries:
            held = self._replicas.partitions.get(name)
            if held is None or not held.is_leader or held.log is None:
                continue
            try:
                prepared = await held.log.prepare(records)
            except KafkaError as error:
                found[name] = error
            else:
                if prepared is not None:
                    found[name] = prepared
        return found

    def _append(
        self, name: TopicPartition, records: Buffer | PreparedAppend | KafkaError, acks: int, origin: AppendOrigin
    ) -> tuple[Partition, AppendInfo]:
        partition = self._replicas.partition(name)
        if not self._replicas.may_acknowledge():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "ZooKeeper does not answer, so this broker may no longer lead"
            )
        if isinstance(records, KafkaError):
            raise records
        if partition.log is not None and len(partition.log.producers) >= self._producers_max:
            self._refuse_new_producer(partition.log.producers, records)
        return partition, partition.append_as_leader(records, acks=acks, origin=origin)

    def _refuse_new_producer(self, known: ProducerState, records: Buffer | PreparedAppend) -> None:
        """Anybody can make producer ids up. Those that are known go on, and markers end their transactions."""
        view = records.records if isinstance(records, PreparedAppend) else memoryview(records)
        for _, header in iter_batches(view):
            if header.has_producer_id and not header.is_control and known.get(header.producer_id) is None:
                self.refused_producers += 1
                reason = f"the partition remembers klamm.max.producers.per.partition={self._producers_max} producers"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, reason)

    def _failed(self, name: TopicPartition, error: KafkaError) -> ProduceResult:
        self.failed_requests += 1
        held = self._replicas.partitions.get(name)
        start = held.log.log_start_offset if held is not None and held.log is not None else -1
        faults = error.record_errors if isinstance(error, InvalidRecords) else ()
        return ProduceResult(name, error.code, message=error.message, log_start_offset=start, record_errors=faults)

    def _unflushed(self, required: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        partitions = self._replicas.partitions
        return {name: end for name, end in required.items() if partitions[name].flushed(end) is None}

    async def _wait(
        self, required: Mapping[TopicPartition, int], acks: int, timeout_ms: int, client: ClientConnection | None
    ) -> dict[TopicPartition, ErrorCode]:
        """Wait until each partition has flushed what it must and, for acks=all, until its high watermark has reached
        the required offset; returns the failures."""
        pending: dict[TopicPartition, int] = {}
        failures: dict[TopicPartition, ErrorCode] = {}

        def is_settled(name: TopicPartition, end: int) -> bool:
            outcome = self._outcome(name, end, acks)
            if outcome not in (None, ErrorCode.NONE):
                failures[name] = outcome
            return outcome is not None

        def done(changed: TopicPartition) -> bool:
            if changed in pending and is_settled(changed, pending[changed]):
                del pending[changed]
            return not pending

        with closing(self._replicas.waiting_produces.watch(())) as watch:
            for number, (name, end) in enumerate(required.items(), 1):
                if not is_settled(name, end):  # nothing can happen before it is watched
                    pending[name] = end
                    watch.add([name])
                if number % OUTCOMES_PER_SLICE == 0:
                    await asyncio.sleep(0)
            if pending:
                await watch.wait(done, timeout_ms / 1000, client)
        return failures | dict.fromkeys(pending, ErrorCode.REQUEST_TIMED_OUT)

    def _outcome(self, name: TopicPartition, required_offset: int, acks: int) -> ErrorCode | None:
        try:
            partition = self._replicas.partition(name)
        except KafkaError as error:
            return error.code
        outcome = (partition.acknowledged if acks == ACKS_ALL else partition.flushed)(required_offset)
        if outcome in (None, ErrorCode.NONE) and not self._replicas.may_acknowledge():
            return ErrorCode.REQUEST_TIMED_OUT
        return outcome


def _after_wait(result: ProduceResult, failures: Mapping[TopicPartition, ErrorCode]) -> ProduceResult:
    if result.error is ErrorCode.NONE and result.partition in failures:
        return result._replace(error=failures[result.partition], base_offset=-1)
    return result


class _Turn:
    """How much was appended since other tasks could run."""

    __slots__ = ("_bytes", "_clock", "_ends", "_entries")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + SECONDS_PER_SLICE
        self._entries = self._bytes = 0

    def add(self, size: int) -> None:
        self._entries += 1
        self._bytes += size

    def is_over(self) -> bool:
        return (
            self._entries >= ENTRIES_PER_SLICE
            or self._bytes >= BYTES_PER_SLICE
            or (self._entries > 0 and self._clock.monotonic() >= self._ends)
        )
