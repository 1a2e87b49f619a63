"""Every API that has room for an error reports a failed handler: for the whole response, or for each element of the
request."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.failures import failure_body
from klamm.wire.messages import decode_request, decode_response, encode_request, request_class

EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


def sample_struct(struct: Any, version: int) -> Any:
    values = {field.name: sample(field, version) for field in struct.untagged_fields(version)}
    return struct.data_class(version=version, **values)


def sample(field: Any, version: int, number: int = 1) -> Any:
    """Each array has two distinguishable elements."""
    if field.is_struct_array():
        return [sample_struct(field.array_of, version) for _ in range(2)]
    if field.is_array():
        return [sample(field.array_of, version, number) for number in (1, 2)]
    if field.is_struct():
        return sample_struct(field, version)
    match field.type_str:
        case "string":
            return f"thing-{number}"
        case "bytes" | "records":
            return b"x"
        case "bool":
            return True
        case "uuid":
            return None
    return number


def errors_in(value: Any) -> list[int]:
    if isinstance(value, list):
        return [code for each in value for code in errors_in(each)]
    if isinstance(value, dict):
        # A tagged field, about the configuration of a created topic.
        value.pop("topic_config_error_code", None)
        own = [each for name, each in value.items() if name.endswith("error_code")]
        return own + [code for each in value.values() for code in errors_in(each)]
    return []


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_the_error_is_in_the_answer(key: ApiKey, version: int) -> None:
    cls = request_class(key)
    fields = {field.name: sample(field, version) for field in cls._struct.untagged_fields(version)}
    body = encode_request(cls(version=version, **fields), version)
    answer = failure_body(key, version, decode_request(key, version, body), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert answer is not None
    codes = errors_in(decode_response(key, version, answer).to_dict())
    assert codes
    assert set(codes) == {ErrorCode.UNKNOWN_SERVER_ERROR}


def test_each_partition_is_named_where_the_response_has_no_error_of_its_own() -> None:
    cls = request_class(ApiKey.LIST_OFFSETS)
    partition = cls.ListOffsetsTopic.ListOffsetsPartition
    topics = [
        cls.ListOffsetsTopic(name="a", partitions=[partition(partition_index=i, timestamp=0) for i in (0, 7)]),
        cls.ListOffsetsTopic(name="b", partitions=[partition(partition_index=1, timestamp=0)]),
    ]
    body = encode_request(cls(version=5, replica_id=-1, isolation_level=0, topics=topics), 5)
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
    everything = decode_request(
        ApiKey.METADATA, 9, encode_request(request_class(ApiKey.METADATA)(version=9, topics=None), 9)
    )
    assert failure_body(ApiKey.METADATA, 9, everything, ErrorCode.UNKNOWN_SERVER_ERROR) is None
