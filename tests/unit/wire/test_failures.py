"""Every API that has room for an error reports a failed handler: for the whole response, or for each element of the
request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.failures import failure_body
from klamm.wire.messages import decode_request, decode_response, encode_request, request_class
from klamm.wire.schema import Field

EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


def sample(cls: Any, version: int) -> Any:
    """Each array has two distinguishable elements."""
    return cls(**{field.name: sample_field(cls, field, version) for field in cls.struct.fields(version)})


def sample_field(cls: Any, field: Field, version: int) -> Any:
    if field.struct is not None:
        return [sample(getattr(cls, field.struct.name), version) for _ in range(2)]
    return [value(field.type, number) for number in (1, 2)] if field.is_array else value(field.type, 1)


def value(kind: str, number: int) -> Any:
    match kind:
        case "string":
            return f"thing-{number}"
        case "bytes" | "records":
            return b"x"
        case "bool":
            return True
        case "uuid":
            return bytes(16)
    return number


def errors_in(message: Any, version: int) -> Iterator[int]:
    """Looks at the fields that are always there. A tagged one is about the configuration of a created topic."""
    for field in message.struct.fields(version):
        if field.name.endswith("error_code"):
            yield getattr(message, field.name)
        elif field.struct is not None:
            for each in getattr(message, field.name) or ():
                yield from errors_in(each, version)


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_the_error_is_in_the_answer(key: ApiKey, version: int) -> None:
    body = encode_request(sample(request_class(key), version), version)
    answer = failure_body(key, version, decode_request(key, version, body), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert answer is not None
    codes = list(errors_in(decode_response(key, version, answer), version))
    assert codes
    assert set(codes) == {ErrorCode.UNKNOWN_SERVER_ERROR}


def test_each_partition_is_named_where_the_response_has_no_error_of_its_own() -> None:
    cls = request_class(ApiKey.LIST_OFFSETS)
    partition = cls.ListOffsetsTopic.ListOffsetsPartition
    topics = [
        cls.ListOffsetsTopic(name="a", partitions=[partition(partition_index=i, timestamp=0) for i in (0, 7)]),
        cls.ListOffsetsTopic(name="b", partitions=[partition(partition_index=1, timestamp=0)]),
    ]
    body = encode_request(cls(replica_id=-1, isolation_level=0, topics=topics), 5)
    answer = failure_body(
        ApiKey.LIST_OFFSETS, 5, decode_request(ApiKey.LIST_OFFSETS, 5, body), ErrorCode.KAFKA_STORAGE_ERROR
    )
    assert answer is not None
    found = decode_response(ApiKey.LIST_OFFSETS, 5, answer)
    assert [(topic.name, [(p.partition_index, p.error_code) for p in topic.partitions]) for topic in found.topics] == [
        ("a", [(0, 56), (7, 56)]),
        ("b", [(1, 56)]),
    ]


def test_where_nothing_was_named_there_is_no_place_for_an_error() -> None:
    everything = decode_request(ApiKey.METADATA, 9, encode_request(request_class(ApiKey.METADATA)(topics=None), 9))
    assert failure_body(ApiKey.METADATA, 9, everything, ErrorCode.UNKNOWN_SERVER_ERROR) is None
