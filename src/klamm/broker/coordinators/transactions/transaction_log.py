"""The coordinator's log, `__transaction_state`: one record per batch, replicated before it counts.

The wait is the timeout of the transaction itself, as in Kafka: an answer later than that would be of no use. Errors of
the log become errors that make clients retry or look for the coordinator again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from klamm.broker.appends import ACKS_ALL, Appends
from klamm.broker.coordinators.state_loading import StateLoading, wait_until_replicated
from klamm.broker.coordinators.transactions.records import decode_key, decode_value, encode_key, encode_value
from klamm.broker.coordinators.transactions.transaction import Transaction
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.validation import AppendOrigin
from klamm.model.errors import ErrorCode
from klamm.model.ids import TRANSACTION_STATE, TopicPartition
from klamm.model.ports import Clock
from klamm.wire.errors import ProtocolError
from klamm.wire.records import Record, build_batch

_ANSWERS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class TransactionLog:
    def __init__(self, replicas: ReplicaManager, appends: Appends, clock: Clock) -> None:
        self._replicas = replicas
        self._appends = appends
        self._clock = clock
        self._load_buffer_bytes = replicas.config.transaction_state_log_load_buffer_size
        self._tombstone_timeout_ms = replicas.config.request_timeout_ms
        self._one_reads = asyncio.Lock()
        self.damaged = 0
        """Records that loads had to leave out."""

    async def write(self, partition: int, transaction: Transaction) -> ErrorCode:
        record = Record(encode_key(transaction.transactional_id), encode_value(transaction), self._clock.wall_ms())
        return await self._append(partition, record, transaction.timeout_ms)

    async def write_tombstone(self, partition: int, transactional_id: str) -> ErrorCode:
        record = Record(encode_key(transactional_id), None, self._clock.wall_ms())
        return await self._append(partition, record, self._tombstone_timeout_ms)

    async def _append(self, partition: int, record: Record, timeout_ms: int) -> ErrorCode:
        [result] = await self._appends.append(
            [(TopicPartition(TRANSACTION_STATE, partition), build_batch([record]))],
            acks=ACKS_ALL,
            timeout_ms=timeout_ms,
            internal=True,
            origin=AppendOrigin.COORDINATOR,
        )
        return _ANSWERS.get(result.error, result.error)

    async def load(self, partition: int, is_wanted: Callable[[], bool]) -> dict[str, Transaction]:
        """The last value of each id. A record that cannot be understood is left out, and takes no other with it.

        One partition is read at a time: the slices of all of them in one turn would hold the loop. The load waits until
        everything is replicated. Otherwise the markers of a decision that only this broker has would be sent, and its
        successor could decide differently. Raises KafkaError if the log cannot be read.
        """
        name = TopicPartition(TRANSACTION_STATE, partition)
        loading = StateLoading(name, self._replicas.partition(name).local_log(), self._load_buffer_bytes, is_wanted)
        found: dict[str, Transaction] = {}
        async with self._one_reads:
            async for header, records in loading.read():
                for record in records if not header.is_control else ():
                    try:
                        _apply(found, record)
                    except ProtocolError as error:
                        loading.leave_out(record.offset, str(error))
        self.damaged += loading.damaged
        await wait_until_replicated(self._replicas, name, loading.position, is_wanted)
        return found


def _apply(found: dict[str, Transaction], record: Record) -> None:
    transactional_id = decode_key(record.key)
    if transactional_id is None:
        raise ProtocolError("a key of an unknown version")
    if record.value is None:
        found.pop(transactional_id, None)
    else:
        found[transactional_id] = decode_value(transactional_id, record.value)
