"""Answers to control requests: byte-equal to the schema codec on the way out; on the way in the refused and the
successful partitions, in runs and between them, and nothing from a torn answer."""

from __future__ import annotations

import random
import struct

import pytest

from klamm.model.control import ControlAnswer
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.control.responses import encode_answer, refused, succeeded
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import encode_response, response_class
from klamm.wire.slices import finish
from klamm.wire.varint import uvarint

Answer = tuple[TopicPartition, int]


def body_of(answers: list[Answer]) -> bytes:
    parts = [b"\x00\x00", uvarint(len(answers) + 1)]
    for (topic, partition), code in answers:
        parts.append(uvarint(len(topic) + 1) + topic.encode() + struct.pack(">ihx", partition, code))
    return b"".join([*parts, b"\x00"])


def some_answers(rng: random.Random) -> list[Answer]:
    answers: list[Answer] = []
    for _ in range(rng.randrange(6)):
        topic = rng.choice(["t", "topic-1", "topic-2", "x" * rng.randrange(120, 140)])
        for _ in range(rng.randrange(8)):
            code = rng.choice([0, 0, 0, 0, 0, 3, 56, -1])
            answers.append((TopicPartition(topic, rng.choice([0, 7, 2**31 - 1])), code))
    return answers


@pytest.mark.parametrize("seed", range(100))
def test_every_answer_is_told(seed: int) -> None:
    answers = some_answers(random.Random(seed))
    body = body_of(answers)
    assert refused(memoryview(body)) == tuple(answer for answer in answers if answer[1])
    assert succeeded(memoryview(body)) == {name for name, code in answers if not code}


@pytest.mark.parametrize(
    ("key", "version"), [*((ApiKey.LEADER_AND_ISR, v) for v in range(5)), *((ApiKey.STOP_REPLICA, v) for v in range(4))]
)
def test_an_encoded_answer_equals_the_schema_codec(key: ApiKey, version: int) -> None:
    names = [TopicPartition("a", 0), TopicPartition("größe", 2), TopicPartition("a", 1)]
    partitions = dict(zip(names, (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE), strict=True))
    body = finish(encode_answer(key, version, ControlAnswer(ErrorCode.NONE, partitions)))
    cls = response_class(key)
    errors = [
        cls.PartitionError(topic_name=name.topic, partition_index=name.partition, error_code=code)
        for name, code in partitions.items()
    ]
    assert body == encode_response(cls(error_code=0, partition_errors=errors), version)
    if APIS[key].is_flexible(version):
        assert refused(memoryview(body)) == ((TopicPartition("größe", 2), ErrorCode.KAFKA_STORAGE_ERROR),)


def test_a_torn_answer_or_one_with_tags_is_refused() -> None:
    answers = [(TopicPartition("t", n), 0) for n in range(3)]
    body = body_of(answers)
    for end in range(2, len(body) - 1):
        with pytest.raises(ProtocolError):
            refused(memoryview(body[:end]))
    with pytest.raises(ProtocolError):
        refused(memoryview(body[:-2] + b"\x01\x00"))
    more = body[:2] + uvarint(5) + body[3:]
    with pytest.raises(ProtocolError):
        refused(memoryview(more))
