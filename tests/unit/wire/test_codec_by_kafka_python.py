"""klamm's codec against kafka-python's, both directions: every API and version that both know.

Random messages of ours must mean the same to kafka-python, which must also write the same bytes. It has no control
requests; those and everything else are also judged by Java (tests/interop/test_codec_by_java.py).
"""

from __future__ import annotations

import random
import uuid
import warnings
from typing import Any

import pytest

from klamm.testing.random_messages import random_message
from klamm.wire.apis import APIS, CONTROL_APIS
from klamm.wire.messages import encode_request, request_class, response_class

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schema files by a deprecated call
    from kafka.protocol import admin, consumer, metadata, producer, sasl

EACH = 3
CLASSES = [cls for key in APIS if key not in CONTROL_APIS for cls in (request_class(key), response_class(key))]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_both_say_the_same(cls: Any) -> None:
    rng = random.Random(cls.__name__)
    judge = theirs(cls.__name__)
    assert judge.max_version >= cls.schema.versions.last
    for version in range(cls.schema.versions.last + 1):
        for _ in range(EACH):
            message = random_message(cls, version, rng)
            if cls.__name__ == "ApiVersionsResponse":
                message.error_code = 0  # after an error it decodes version 0
            body = encode_request(message, version)
            decoded = judge.decode(body, version=version)
            assert_equal(message, decoded, version)
            decoded._header = None  # a decoded message has none, and encoding looks for it
            assert bytes(decoded.encode(version=version)) == body


def theirs(name: str) -> Any:
    packages = (producer, consumer, metadata, admin, sasl)
    return next(getattr(package, name) for package in packages if hasattr(package, name))


def assert_equal(message: Any, decoded: Any, version: int) -> None:
    for field in [*message.struct.fields(version), *message.struct.tagged_fields(version)]:
        ours, other = getattr(message, field.name), getattr(decoded, field.name)
        if field.struct is None or ours is None:
            assert ours == plain(other), field.name
            continue
        assert len(ours) == len(other), field.name
        for one, two in zip(ours, other, strict=True):
            assert_equal(one, two, version)


def plain(value: Any) -> Any:
    """Our form of what kafka-python gives a type of its own: ids, and sets of permitted operations."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, set):
        bits = sum(1 << bit for bit in value)
        return bits - (1 << 32) if bits >> 31 else bits
    return value
