"""Messages by schema: every API survives a round trip in every version; torn or lying bytes are refused."""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import pytest

from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)

EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]
INTEGERS = {"int8": 7, "int16": 15, "uint16": 15, "int32": 31, "int64": 63}


def random_value(field: Any, version: int, rng: random.Random, *, is_element: bool = False) -> Any:
    if not is_element and field.nullable_for_version_q(version) and rng.random() < 0.3:
        return None
    if field.is_struct_array():
        return [random_struct(field.array_of, version, rng) for _ in range(rng.randrange(3))]
    if field.is_array():
        return [random_value(field.array_of, version, rng, is_element=True) for _ in range(rng.randrange(4))]
    if field.is_struct():
        return random_struct(field, version, rng)
    kind = field.type_str
    if kind in INTEGERS:
        return rng.randrange(1 << INTEGERS[kind])
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return "".join(rng.choices("abcü", k=rng.randrange(6)))
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(8))
        case "float64":
            return float(rng.randrange(1000))
        case "uuid":
            return uuid.UUID(int=rng.getrandbits(128))
        case "bitfield":
            return {rng.randrange(30)}
    raise AssertionError(kind)


def random_struct(struct_field: Any, version: int, rng: random.Random) -> Any:
    fields = [*struct_field.untagged_fields(version), *struct_field.tagged_fields(version)._fields]
    values = {field.name: random_value(field, version, rng) for field in fields}
    return struct_field.data_class(version=version, **values)


def random_message(cls: Any, version: int, rng: random.Random) -> Any:
    values = {f.name: random_value(f, version, rng) for f in cls._struct.untagged_fields(version)}
    return cls(version=version, **values)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_round_trip(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(3):
        request = random_message(request_class(key), version, rng)
        body = encode_request(request, version)
        assert encode_request(decode_request(key, version, body), version) == body
        response = random_message(response_class(key), version, rng)
        body = encode_response(response, version)
        if key != ApiKey.API_VERSIONS:  # its decoder falls back to version 0 on any error
            assert encode_response(decode_response(key, version, body), version) == body


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_our_table_agrees_with_the_schemas(key: ApiKey, version: int) -> None:
    for cls in (request_class(key), response_class(key)):
        assert cls.flexible_version_q(version) == APIS[key].is_flexible(version)
        assert key == cls.API_KEY
        assert version <= cls.max_version


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_every_truncation_is_refused(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    body = encode_request(random_message(request_class(key), version, rng), version)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            decode_request(key, version, body[:cut])
    decode_request(key, version, body + b"surplus bytes are ignored")


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_mutations_are_decoded_or_refused(key: ApiKey, version: int) -> None:
    rng = random.Random(key * 100 + version)
    for _ in range(40):
        body = bytearray(encode_request(random_message(request_class(key), version, rng), version))
        for _ in range(rng.randrange(1, 4)):
            if body:
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            decode_request(key, version, body)
        except ProtocolError:
            pass


def test_what_kafka_python_lets_through() -> None:
    lies = {
        "a string cut at the end": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 10) + b"abc"),
        "a negative count": (ApiKey.METADATA, 1, struct.pack(">i", -2)),
        "a null topic name": (ApiKey.METADATA, 1, struct.pack(">ih", 1, -1)),
        "null topics where they may not be": (ApiKey.METADATA, 0, struct.pack(">i", -1)),
        "a count that the frame cannot hold": (ApiKey.METADATA, 1, struct.pack(">i", 2**31 - 1)),
        "an endless varint": (ApiKey.METADATA, 9, b"\xff" * 1000),
        "a huge compact count": (ApiKey.METADATA, 9, b"\xff\xff\xff\xff\x0f"),
        "many tags": (ApiKey.LIST_GROUPS, 3, b"\xff\x01" + b"\x00\x00" * 300),
        "falling tags": (ApiKey.LIST_GROUPS, 3, b"\x02\x09\x00\x08\x00"),
        "a null element": (ApiKey.DESCRIBE_CONFIGS, 0, struct.pack(">ibhcih", 1, 2, 1, b"t", 1, -1)),
        "no UTF-8": (ApiKey.METADATA, 1, struct.pack(">ih", 1, 1) + b"\xff"),
    }
    for name, (key, version, body) in lies.items():
        with pytest.raises(ProtocolError):
            decode_request(key, version, body)
            pytest.fail(name)


def test_tag_sections_cannot_make_us_copy_the_frame_over_and_over() -> None:
    topic = b"\x02a\x01\x00\x00"  # a compact string and one empty unknown tag
    count = 100_000
    body = bytes([(count + 1) & 0x7F | 0x80, (count + 1) >> 7 & 0x7F | 0x80, (count + 1) >> 14]) + topic * count
    with pytest.raises(ProtocolError, match="too many tagged fields"):
        decode_request(ApiKey.METADATA, 9, body + b"\x00\x00\x00\x00")


@pytest.mark.parametrize(("key", "version"), [(99, 0), (-1, 0), (ApiKey.METADATA, 10), (ApiKey.METADATA, -1)])
def test_unknown_api_or_version(key: int, version: int) -> None:
    with pytest.raises(ProtocolError):
        decode_request(key, version, b"")


def test_header_versions() -> None:
    assert APIS[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(0) == 0
    assert APIS[ApiKey.CONTROLLED_SHUTDOWN].request_header_version(1) == 1
    assert APIS[ApiKey.METADATA].request_header_version(9) == 2
    assert APIS[ApiKey.METADATA].response_header_version(9) == 1
    assert APIS[ApiKey.API_VERSIONS].request_header_version(3) == 2
    assert APIS[ApiKey.API_VERSIONS].response_header_version(3) == 0
