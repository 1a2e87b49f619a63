"""The answer to a request whose handler failed: the API's own response, with the error wherever it has room for one.

As in Kafka (AbstractRequest.getErrorResponse), the error goes into the field of the whole response if there is one,
else into one field for each topic, partition, group or resource that the request names. The answer is derived from the
two tables, so that no handler needs to write one: the response's array of results mirrors the request's array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from klamm.model.errors import ErrorCode
from klamm.wire.messages import Message, encode_response, response_class
from klamm.wire.schema import Field, Struct

_MEANINGS: Final = (
    ("name", "topic", "topic_name", "group_id"),
    ("index", "partition", "partition_index", "partition_id"),
)
"""Different names for the same thing, in request and response or in several APIs."""


def failure_body(api_key: int, version: int, request: Any, error: ErrorCode) -> bytes | None:
    """None if the response has no place for the error: then the connection must be closed."""
    cls = response_class(api_key)
    fields = cls.struct.fields(version)
    if any(_is_error(field) for field in fields):
        return encode_response(cls(**_errors(fields, error)), version)
    for field in fields:
        if field.struct is not None and _has_error(field.struct, version):
            inner = getattr(cls, field.struct.name)
            entries = [_mirror(inner, version, asked, error) for asked in _asked(request)]
            return encode_response(cls(**{field.name: entries}), version) if entries else None
    return None


def _is_error(field: Field) -> bool:
    return field.name.endswith("error_code")


def _has_error(struct: Struct, version: int) -> bool:
    return any(
        _is_error(field) or (field.struct is not None and _has_error(field.struct, version))
        for field in struct.fields(version)
    )


def _errors(fields: list[Field], error: ErrorCode) -> dict[str, Any]:
    return {field.name: int(error) for field in fields if _is_error(field)}


def _asked(thing: Any) -> Iterator[Any]:
    """The elements of the first non-empty array of a request, or of an element of it."""
    for name in thing.defaults if isinstance(thing, Message) else ():
        value = getattr(thing, name)
        if isinstance(value, list) and value:
            yield from value
            return


def _mirror(cls: Any, version: int, asked: Any, error: ErrorCode) -> Any:
    """The element of the response for one element of the request, which is a struct, a name or a number."""
    values: dict[str, Any] = {}
    fields = cls.struct.fields(version)
    has_own_error = any(_is_error(field) for field in fields)
    for field in fields:
        if _is_error(field):
            values[field.name] = int(error)
        elif field.struct is not None:
            inner = getattr(cls, field.struct.name)
            is_wanted = not has_own_error and _has_error(field.struct, version)
            values[field.name] = [_mirror(inner, version, each, error) for each in _asked(asked)] if is_wanted else []
        elif (known := _known(field.name, asked)) is not None:
            values[field.name] = known
    return cls(**values)


def _known(name: str, asked: Any) -> Any:
    if isinstance(asked, (str, int)):
        wanted = _MEANINGS[0] if isinstance(asked, str) else _MEANINGS[1]
        return asked if name in wanted else None
    for same in next((names for names in _MEANINGS if name in names), (name,)):
        if (value := getattr(asked, same, None)) is not None:
            return value
    return None
