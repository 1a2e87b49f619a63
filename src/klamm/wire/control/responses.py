"""Answers to control requests, in both directions: brokers encode them, the controller reads them.

LeaderAndIsr version 4 and StopReplica versions 2 and 3 have the same form: an error code, then a flat list of (topic,
partition, error code), in the flexible encoding. An answer may name 60,000 partitions, so both directions are written
by hand. The controller needs only the refused ones; brokers answer topic by topic and mostly without an error, so one
match skips a whole run of a topic's good answers. Bytes that do not parse raise ProtocolError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator
from functools import cache
from typing import Final

from klamm.model.control import ControlAnswer
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import encode_response, response_class
from klamm.wire.tags import EMPTY_TAGS
from klamm.wire.varint import read_uvarint, uvarint

PARTITIONS_PER_SLICE: Final = 2_000

_CODE = struct.Struct(">h")
_ENTRY = struct.Struct(">ihx")
"""Partition, error code, and no tags."""


def encode_error(api_key: ApiKey, version: int, error: ErrorCode) -> bytes:
    """An answer to the request as a whole: to UpdateMetadata, and for any refusal."""
    return encode_response(response_class(api_key)(error_code=error), version)


def encode_answer(api_key: ApiKey, version: int, answer: ControlAnswer) -> Generator[None, None, bytes]:
    """The answer to LeaderAndIsr or StopReplica. Each `next` does one slice of the work."""
    if not APIS[api_key].is_flexible(version):
        return _encode_by_schema(api_key, version, answer)
    chunks = [_CODE.pack(answer.error) + uvarint(len(answer.partitions) + 1)]
    names: dict[str, bytes] = {}
    for count, (name, code) in enumerate(answer.partitions.items(), 1):
        topic = names.get(name.topic)
        if topic is None:
            raw = name.topic.encode()
            topic = names[name.topic] = uvarint(len(raw) + 1) + raw
        chunks.append(topic + _ENTRY.pack(name.partition, code))
        if count % PARTITIONS_PER_SLICE == 0:
            yield
    chunks.append(EMPTY_TAGS)
    return b"".join(chunks)


def _encode_by_schema(api_key: ApiKey, version: int, answer: ControlAnswer) -> bytes:
    cls = response_class(api_key)
    errors = [
        cls.PartitionError(topic_name=name.topic, partition_index=name.partition, error_code=code)
        for name, code in answer.partitions.items()
    ]
    return encode_response(cls(error_code=answer.error, partition_errors=errors), version)


def error_code(body: memoryview) -> int:
    if len(body) < 2:
        raise ProtocolError("an answer without an error code")
    return int.from_bytes(body[:2], "big", signed=True)


def refused(body: memoryview) -> tuple[tuple[TopicPartition, int], ...]:
    """Partitions with an error, and their error codes."""
    return tuple((name, code) for name, code in _partitions(bytes(body), zero=False))


def succeeded(body: memoryview) -> frozenset[TopicPartition]:
    return frozenset(name for name, code in _partitions(bytes(body), zero=True) if code == 0)


@cache
def _good_run(size: int) -> re.Pattern[bytes]:
    """Matches answers without error and tags, all for the topic that the first one names; `size` is its length byte."""
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
                raise ProtocolError("an answer with unknown tagged fields")
            if zero or body[name_end + 4 : end] != b"\x00\x00":
                topic = body[position:name_end].decode()
                number = int.from_bytes(body[name_end : name_end + 4], "big")
                yield TopicPartition(topic, number), int.from_bytes(body[name_end + 4 : end], "big", signed=True)
            position = end + 1
            remaining -= 1
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an answer that ends early or is not text: {error}") from error
