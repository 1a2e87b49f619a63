"""Answers to control requests, read by hand: one may name 60,000 partitions, of which only the refused ones matter.

LeaderAndIsr version 4 and StopReplica versions 2 and 3 answer alike: error code, then flat (topic, partition, error
code), in the flexible encoding. Whatever does not parse raises ProtocolError.
"""

from __future__ import annotations

from collections.abc import Iterator

from klamm.model.ids import TopicPartition
from klamm.wire.errors import ProtocolError
from klamm.wire.varint import read_uvarint


def error_code(body: memoryview) -> int:
    if len(body) < 2:
        raise ProtocolError("an answer without error code")
    return int.from_bytes(body[:2], "big", signed=True)


def refused(body: memoryview) -> tuple[tuple[TopicPartition, int], ...]:
    """Partitions whose error code is not 0."""
    return tuple((name, code) for name, code in _partitions(bytes(body), zero=False))


def succeeded(body: memoryview) -> frozenset[TopicPartition]:
    return frozenset(name for name, code in _partitions(bytes(body), zero=True) if code == 0)


def _partitions(body: bytes, *, zero: bool) -> Iterator[tuple[TopicPartition, int]]:
    try:
        count, position = read_uvarint(body, 2)
        for _ in range(count - 1):
            size = body[position]
            if size < 0x80:
                position += 1
            else:
                size, position = read_uvarint(body, position)
            name_end = position + size - 1
            end = name_end + 6
            if body[end] != 0:
                raise ProtocolError("tagged fields that nobody defined")
            if zero or body[name_end + 4 : end] != b"\x00\x00":
                topic = body[position:name_end].decode()
                number = int.from_bytes(body[name_end : name_end + 4], "big")
                yield TopicPartition(topic, number), int.from_bytes(body[name_end + 4 : end], "big", signed=True)
            position = end + 1
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an answer that ends early or is no text: {error}") from error
