"""Answers to control requests, read by hand: one may name 60,000 partitions, of which only the refused ones matter.

LeaderAndIsr version 4 and StopReplica versions 2 and 3 answer alike: error code, then flat (topic, partition, error
code), in the flexible encoding. Whatever does not parse raises ProtocolError. Brokers answer topic by topic and mostly
without an error, so a whole run of one topic's good answers is skipped by one match.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

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


@cache
def _good_run(size: int) -> re.Pattern[bytes]:
    """Answers without error and tags, all of the topic that the first one names; `size` is its length byte."""
    topic, answer = re.escape(bytes((size,))) + b".{%d}" % (size - 1), rb".{4}\x00\x00\x00"
    return re.compile(b"(" + topic + b")" + answer + rb"(?:\1" + answer + b")*+", re.DOTALL)


def _partitions(body: bytes, *, zero: bool) -> Iterator[tuple[TopicPartition, int]]:
    try:
        count, position = read_uvarint(body, 2)
        remaining = count - 1
        while remaining > 0:
            size = body[position]
            if not zero and 0 < size < 0x80 and (run := _good_run(size).match(body, position)):
                remaining -= (run.end() - position) // (size + 7)
                position = run.end()
                continue
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
            remaining -= 1
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an answer that ends early or is no text: {error}") from error
