"""The records of `__transaction_state`, byte for byte as Kafka writes them.

Version 0 is what brokers beside ZooKeeper write, and so does klamm. Version 1 has the same fields in the flexible
encoding; Kafka from 3.9 on writes it without ZooKeeper, and it is read here as well. A null value is a tombstone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from klamm.broker.coordinators.transactions.transaction import Transaction, TransactionState
from klamm.model.ids import ProducerId, TopicPartition
from klamm.wire.cursor import INT16, INT32, Cursor, string
from klamm.wire.errors import ProtocolError
from klamm.wire.tags import skip_tags
from klamm.wire.varint import read_uvarint

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
VALUE_VERSION_FLEXIBLE: Final = 1
_HEAD: Final = struct.Struct(">qhib")
_TIMES: Final = struct.Struct(">qq")
_NULL_ARRAY: Final = -1


def encode_key(transactional_id: str) -> bytes:
    return INT16.pack(KEY_VERSION) + string(transactional_id)


def encode_value(transaction: Transaction) -> bytes:
    """An Empty id has a null list of partitions; every other state has a list, which may be empty."""
    head = _HEAD.pack(
        transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, int(transaction.state)
    )
    if transaction.state is TransactionState.EMPTY:
        partitions = INT32.pack(_NULL_ARRAY)
    else:
        partitions = _encode_partitions(transaction.partitions)
    times = _TIMES.pack(transaction.last_update_ms, transaction.start_ms)
    return INT16.pack(VALUE_VERSION) + head + partitions + times


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for name in sorted(partitions):
        topics.setdefault(name.topic, []).append(name.partition)
    encoded = [INT32.pack(len(topics))]
    for topic, indexes in topics.items():
        encoded += [string(topic), INT32.pack(len(indexes)), *map(INT32.pack, indexes)]
    return b"".join(encoded)


def decode_key(key: bytes | None) -> str | None:
    """The transactional id, or None for a kind of key that this version does not know. Raises ProtocolError."""
    if key is None:
        raise ProtocolError("a record without a key")
    cursor = Cursor(memoryview(key))
    return cursor.string() if cursor.int16() == KEY_VERSION else None


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """Raises ProtocolError for a value that cannot be read."""
    cursor = Cursor(memoryview(value))
    version = cursor.int16()
    if version not in (VALUE_VERSION, VALUE_VERSION_FLEXIBLE):
        raise ProtocolError(f"unknown version {version} of a transaction's value")
    producer_id, epoch, timeout_ms, state = cursor.unpack(_HEAD)
    try:
        known_state = TransactionState(state)
    except ValueError:
        raise ProtocolError(f"unknown state {state} of a transaction") from None
    read_partitions = _read_partitions if version == VALUE_VERSION else _FlexibleReader(memoryview(value)).partitions
    partitions = frozenset(read_partitions(cursor))
    last_update_ms, start_ms = cursor.unpack(_TIMES)
    return Transaction(
        transactional_id,
        ProducerId(producer_id),
        epoch,
        timeout_ms,
        known_state,
        partitions,
        last_update_ms,
        start_ms,
        last_producer_id=ProducerId(producer_id),
    )


def _read_partitions(cursor: Cursor) -> list[TopicPartition]:
    start = cursor.position
    if cursor.int32() == _NULL_ARRAY:
        return []
    cursor.position = start
    found: list[TopicPartition] = []
    for _ in range(cursor.count(INT16.size + INT32.size)):
        topic = cursor.string()
        found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.count(INT32.size))]
    return found


class _FlexibleReader:
    """The list of partitions in version 1: lengths are varints, one more than the length, and tags end each topic."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def partitions(self, cursor: Cursor) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self._length(cursor)):
            try:
                topic = str(cursor.take(self._length(cursor)), "utf-8")
            except UnicodeDecodeError:
                raise ProtocolError("a topic's name is not UTF-8") from None
            found += [TopicPartition(topic, cursor.int32()) for _ in range(self._length(cursor))]
            cursor.position = skip_tags(self._view, cursor.position)
        return found

    def _length(self, cursor: Cursor) -> int:
        """0 for null too. A length beyond the bytes that are left is refused before anything is built."""
        try:
            length, cursor.position = read_uvarint(self._view, cursor.position)
        except (IndexError, ValueError) as error:
            raise ProtocolError("a malformed length") from error
        if length - 1 > len(self._view) - cursor.position:
            raise ProtocolError(
                f"a length of {length - 1}, but only {len(self._view) - cursor.position} bytes are left"
            )
        return max(length - 1, 0)
