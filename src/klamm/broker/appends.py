"""The produce path: append to the leaders on this broker, and for acks=all wait until each append is committed.

acks=1 is answered after the local append. acks=-1 is answered when the high watermark has passed every partition's last
offset, or when the timeout is over. A detected duplicate waits like its original, because an immediate answer would
acknowledge data that is not replicated yet. A leader that has not heard from ZooKeeper for too long acknowledges
nothing: before the append it refuses with "not leader"; after the append it answers "timed out", because the outcome is
unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from klamm.broker.partition import Partition
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log_results import AppendInfo
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import ClientConnection
from klamm.wire.produce import ProduceResult

ACKS_ALL: Final = -1


class Appends:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self.bytes_in = 0
        self.failed_requests = 0

    async def append(
        self,
        entries: Sequence[tuple[TopicPartition, Buffer]],
        *,
        acks: int,
        timeout_ms: int,
        internal: bool = False,
        client: ClientConnection | None = None,
    ) -> list[ProduceResult]:
        """`internal` lets a coordinator write to its own topic, which clients may not."""
        if acks not in (0, 1, ACKS_ALL):
            return [ProduceResult(name, ErrorCode.INVALID_REQUIRED_ACKS) for name, _ in entries]
        results: list[ProduceResult] = []
        required: dict[TopicPartition, int] = {}
        for name, records in entries:
            if name.topic in INTERNAL_TOPICS and not internal:
                message = f"Cannot append to internal topic {name.topic}"
                results.append(ProduceResult(name, ErrorCode.INVALID_TOPIC_EXCEPTION, message=message))
                continue
            try:
                partition, info = self._append(name, records, acks)
            except KafkaError as error:
                results.append(self._failed(name, error))
                continue
            if not info.duplicate:
                self.bytes_in += len(records)
                self._replicas.after_append(partition)
            offsets = (info.first_offset, info.log_append_time, info.log_start_offset)
            results.append(ProduceResult(name, ErrorCode.NONE, *offsets))
            required[name] = info.last_offset + 1
        if acks != ACKS_ALL or not required:
            return results
        failures = await self._wait(required, timeout_ms, client)
        return [_after_wait(result, failures) for result in results]

    def _append(self, name: TopicPartition, records: Buffer, acks: int) -> tuple[Partition, AppendInfo]:
        partition = self._replicas.partition(name)
        if not self._replicas.may_acknowledge():
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "ZooKeeper does not answer, so this broker may no longer lead"
            )
        return partition, partition.append_as_leader(records, acks=acks)

    def _failed(self, name: TopicPartition, error: KafkaError) -> ProduceResult:
        self.failed_requests += 1
        held = self._replicas.partitions.get(name)
        start = held.log.log_start_offset if held is not None and held.log is not None else -1
        return ProduceResult(name, error.code, message=error.message, log_start_offset=start)

    async def _wait(
        self, required: Mapping[TopicPartition, int], timeout_ms: int, client: ClientConnection | None
    ) -> dict[TopicPartition, ErrorCode]:
        """Wait until each partition's high watermark has reached its required offset; returns the failures."""
        pending = dict(required)
        failures: dict[TopicPartition, ErrorCode] = {}

        def settle(name: TopicPartition) -> None:
            outcome = self._outcome(name, pending[name])
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

    def _outcome(self, name: TopicPartition, required_offset: int) -> ErrorCode | None:
        try:
            partition = self._replicas.partition(name)
        except KafkaError as error:
            return error.code
        outcome = partition.acknowledged(required_offset)
        if outcome is ErrorCode.NONE and not self._replicas.may_acknowledge():
            return ErrorCode.REQUEST_TIMED_OUT
        return outcome


def _after_wait(result: ProduceResult, failures: Mapping[TopicPartition, ErrorCode]) -> ProduceResult:
    if result.error is ErrorCode.NONE and result.partition in failures:
        return result._replace(error=failures[result.partition], base_offset=-1)
    return result
