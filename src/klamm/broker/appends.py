"""The produce path: append to the leaders here, and for acks=all wait until each append is committed.

acks=1 answers after the local append; acks=-1 when the high watermark has passed every partition's last offset, or the
timeout is over. A detected duplicate waits like its original: answering it at once would acknowledge data that is not
replicated yet (reference broker 3.1-3.3). A leader that has not heard from ZooKeeper for long acknowledges nothing:
before the append it refuses as "not leader", after it the outcome is "timed out", which is what the client must assume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.broker.replica_manager import ReplicaManager
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import INTERNAL_TOPICS, TopicPartition
from klamm.model.ports import Buffer
from klamm.model.requests import ClientConnection

ACKS_ALL: Final = -1


@dataclass(slots=True)
class Produced:
    partition: TopicPartition
    error: ErrorCode
    message: str | None = None
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    required_offset: int = -1
    """The high watermark that acknowledges it; meaningless after an error."""


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
    ) -> list[Produced]:
        """`internal` lets a coordinator write to its own topic, which no client may."""
        if acks not in (0, 1, ACKS_ALL):
            return [Produced(name, ErrorCode.INVALID_REQUIRED_ACKS) for name, _ in entries]
        results = [self._append(name, records, acks, internal) for name, records in entries]
        if acks == ACKS_ALL:
            await self._wait(results, timeout_ms, client)
        return results

    def _append(self, name: TopicPartition, records: Buffer, acks: int, internal: bool) -> Produced:
        if name.topic in INTERNAL_TOPICS and not internal:
            return Produced(name, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name.topic}")
        try:
            partition = self._replicas.partition(name)
            if not self._replicas.may_acknowledge():
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no answer from ZooKeeper, leadership is uncertain")
            info = partition.append_as_leader(records, acks=acks)
        except KafkaError as error:
            self.failed_requests += 1
            held = self._replicas.partitions.get(name)
            start = held.log.log_start_offset if held is not None and held.log is not None else -1
            return Produced(name, error.code, error.message, log_start_offset=start)
        if not info.duplicate:
            self.bytes_in += len(records)
            self._replicas.after_append(partition)
        return Produced(
            name,
            ErrorCode.NONE,
            base_offset=info.first_offset,
            log_append_time=info.log_append_time,
            log_start_offset=info.log_start_offset,
            required_offset=info.last_offset + 1,
        )

    async def _wait(self, results: Sequence[Produced], timeout_ms: int, client: ClientConnection | None) -> None:
        pending = {result.partition: result for result in results if result.error is ErrorCode.NONE}
        if not pending:
            return

        def settle(name: TopicPartition) -> None:
            outcome = self._outcome(pending[name])
            if outcome is not None:
                pending.pop(name).error = outcome

        def done(changed: TopicPartition | None) -> bool:
            for name in [changed] if changed is not None else list(pending):
                if name in pending:
                    settle(name)
            return not pending

        await self._replicas.waiting_produces.wait(list(pending), done, timeout_ms / 1000, client)
        for result in pending.values():
            result.error = ErrorCode.REQUEST_TIMED_OUT

    def _outcome(self, result: Produced) -> ErrorCode | None:
        try:
            partition = self._replicas.partition(result.partition)
        except KafkaError as error:
            return error.code
        outcome = partition.acknowledged(result.required_offset)
        if outcome is ErrorCode.NONE and not self._replicas.may_acknowledge():
            return ErrorCode.REQUEST_TIMED_OUT
        return outcome
