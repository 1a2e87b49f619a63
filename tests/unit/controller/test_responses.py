"""Answers by hand: what is refused and what succeeded, in runs and between them, and nothing from what is torn."""

from __future__ import annotations

import random
import struct

import pytest

from klamm.controller.execution.responses import refused, succeeded
from klamm.model.ids import TopicPartition
from klamm.wire.errors import ProtocolError
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
