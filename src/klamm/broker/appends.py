"""The produce path: append to the leaders on this broker, and for acks=all wait until each append is committed.

acks=1 is answered after the local append, and after a flush if flush.messages requires one. acks=-1 is answered when
the high watermark has passed every partition's last offset too, or when the timeout is over. A detected duplicate waits
like its original, because an immediate answer would acknowledge data that is not replicated yet. A leader that has not
heard from ZooKeeper for too long acknowledges nothing: before the append it refuses with "not leader"; after the append
it answers "timed out" without waiting further, because the outcome is unknown and another may lead already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from klamm.broker.partition import Partition
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_traffic import TopicTraffic
from klamm.log.log_results import AppendInfo
from klamm.log.producers.producer_state import ProducerState
from klamm.log.validation import COSTLY_BYTES_MIN, AppendOrigin, InvalidRecords, PreparedAppend
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import ClientConnection
from klamm.wire.batch import iter_batches
from klamm.wire.produce import ProduceResult

ACKS_ALL: Final = -1
ENTRIES_PER_SLICE: Final = 200
BYTES_PER_SLICE: Final = 4 << 20
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
        """A client's costly batches are prepared first, off the loop. A large request is appended in slices; its client
        has no other request meanwhile, so its order is kept."""
        may_be_costly = origin is AppendOrigin.CLIENT and any(len(data) >= COSTLY_BYTES_MIN for _, data in entries)
        prepared = await self.prepare(entries) if may_be_costly and not internal else {}
        results: list[ProduceResult] = []
        required: dict[TopicPartition, int] = {}
        for number, some in enumerate(_slices(entries)):
            if number:
                await asyncio.sleep(0)
            appended, needed = self.append_now(some, acks=acks, internal=internal, origin=origin, prepared=prepared)
            results += appended
            required |= needed
        failures = await self.acknowledged(required, acks, timeout_ms, client)
        return [_after_wait(result, failures) for result in results]

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
        pending = dict(required)
        failures: dict[TopicPartition, ErrorCode] = {}

        def settle(name: TopicPartition) -> None:
            outcome = self._outcome(name, pending[name], acks)
            if outcome is not None:
                del pending[name]
                if outcome is not ErrorCode.NONE:
                    failures[name] = outcome

        def done(changed: TopicPartition | None) -> bool:
            for name in [changed] if changed is not None else list(pending):
                if name in pending:
                    settle(name)
            return not pending

        await self._replicas.waiting_produces.wait(list(pending), done, timeout_ms / 1000, client)
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


def _slices(entries: Sequence[tuple[TopicPartition, Buffer]]) -> Iterator[Sequence[tuple[TopicPartition, Buffer]]]:
    start, size = 0, 0
    for end, (_, records) in enumerate(entries, 1):
        size += len(records)
        if size >= BYTES_PER_SLICE or end - start >= ENTRIES_PER_SLICE:
            yield entries[start:end]
            start, size = end, 0
    if start < len(entries):
        yield entries[start:]
