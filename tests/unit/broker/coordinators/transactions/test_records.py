"""The records of __transaction_state: Kafka's bytes, and what damage does."""

from __future__ import annotations

from random import Random

import pytest

from klamm.broker.coordinators.transactions.records import decode_key, decode_value, encode_key, encode_value
from klamm.broker.coordinators.transactions.transaction import Transaction, TransactionState
from klamm.model.ids import ProducerId, TopicPartition
from klamm.wire.errors import ProtocolError

EMPTY = Transaction("txn-1", ProducerId(1000), 0, 60_000, TransactionState.EMPTY, last_update_ms=1_600_000_000_000)
OPEN = Transaction(
    "txn-1",
    ProducerId(1000),
    3,
    60_000,
    TransactionState.ONGOING,
    frozenset({TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("a", 0)}),
    1_600_000_000_000,
    1_600_000_000_000 - 5,
)
EMPTY_BYTES = bytes.fromhex("000000000000000003e800000000ea6000ffffffff00000174876e8000ffffffffffffffff")
FLEXIBLE = bytes.fromhex(
    "0001 00000000000003e8 0003 0000ea60 01"
    " 03 02 61 03 00000000 00000002 00  02 62 02 00000001 01 05 02 abcd"
    " 00000174876e8000 00000174876e7ffb 00"
)


def test_the_key_is_kafkas() -> None:
    assert encode_key("txn-1").hex() == "0000000574786e2d31"
    assert decode_key(encode_key("grüße-😀")) == "grüße-😀"


def test_an_empty_id_has_no_list_of_partitions() -> None:
    assert encode_value(EMPTY) == EMPTY_BYTES


def test_a_completed_transaction_has_an_empty_list() -> None:
    completed = Transaction("t", ProducerId(1), 0, 1, TransactionState.COMPLETE_COMMIT, last_update_ms=0)
    assert encode_value(completed)[17:21] == bytes(4)


@pytest.mark.parametrize("transaction", [EMPTY, OPEN])
def test_what_was_written_is_read(transaction: Transaction) -> None:
    found = decode_value("txn-1", encode_value(transaction))
    assert (found.last_producer_id, found.last_epoch) == (transaction.producer_id, -1)
    assert encode_value(found) == encode_value(transaction)
    assert found.partitions == transaction.partitions


def test_the_flexible_version_is_read_with_unknown_tags() -> None:
    found = decode_value("txn-1", FLEXIBLE)
    assert encode_value(found) == encode_value(OPEN)


def test_the_flexible_version_may_have_no_partitions() -> None:
    data = bytes.fromhex("0001 00000000000003e8 0000 0000ea60 00 00 00000174876e8000 ffffffffffffffff 00")
    assert encode_value(decode_value("txn-1", data)) == EMPTY_BYTES


def test_another_kind_of_key_is_not_ours() -> None:
    assert decode_key(bytes.fromhex("0001 0001 61")) is None


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00", b"\x00\x00\x00\x05ab", b"\x00\x00\x00\x01\xff"])
def test_a_damaged_key_is_refused(key: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_key(key)


@pytest.mark.parametrize("value", [EMPTY_BYTES, encode_value(OPEN), FLEXIBLE[:-1]])
def test_a_truncated_value_is_refused(value: bytes) -> None:
    for size in range(len(value)):
        with pytest.raises(ProtocolError):
            decode_value("t", value[:size])


def test_an_unknown_state_or_version_is_refused() -> None:
    for damaged in (b"\x00\x02" + EMPTY_BYTES[2:], EMPTY_BYTES[:16] + b"\x06" + EMPTY_BYTES[17:]):
        with pytest.raises(ProtocolError):
            decode_value("t", damaged)


def test_random_bytes_are_read_or_refused() -> None:
    rng = Random(13)
    for _ in range(3_000):
        damaged = bytearray(rng.choice([encode_value(OPEN), FLEXIBLE]))
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decode_value("t", bytes(damaged))
        except ProtocolError:
            pass
