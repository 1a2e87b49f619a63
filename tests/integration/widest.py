"""The widest request of any API, made from its table: one list of it repeats an entry until the frame is full, or until
it has as many entries as a client may send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from klamm.broker.handlers.dispatch import ENTRIES_MAX
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.messages import encode_request, request_class
from klamm.wire.schema import Field

Value = Callable[[Field, int], Any]
"""What a field of the n-th entry holds; None for the protocol's default."""


def lists_of(cls: Any, version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path to each list of a message: ("topics",), ("topics", "partitions"), ..."""
    for field in cls.struct.fields(version):
        if field.is_array:
            yield (*path, field.name)
        if field.struct is not None:
            yield from lists_of(getattr(cls, field.struct.name), version, (*path, field.name))


def entry(cls: Any, version: int, number: int, wide: tuple[str, ...], count: int, value: Value, others: int = 1) -> Any:
    """A struct whose lists have `others` elements each; that at the path `wide` has `count`, those above it one."""
    values = {}
    for field in cls.struct.fields(version):
        is_wide = wide[:1] == (field.name,)
        times = count if wide == (field.name,) else 1 if is_wide or not field.is_array else others
        if field.struct is not None:
            nested = getattr(cls, field.struct.name)
            inner = wide[1:] if is_wide else ()
            made = [entry(nested, version, number + n, inner, count, value, others) for n in range(times)]
            values[field.name] = made if field.is_array else made[0]
        else:
            given = [value(field, number + n) for n in range(times)]
            if not given or given[0] is not None:
                values[field.name] = given if field.is_array else given[0]
    return cls(**values)


def widest(key: ApiKey, frame_bytes: int, value: Value) -> Iterator[tuple[str, int, bytes]]:
    """For each list of the API's latest version: its name, the version, and a request of about `frame_bytes`. A list of
    structs with lists of their own comes a second time, with those empty: then it has the most entries."""
    version = APIS[key].max_version
    cls = request_class(key)
    paths = list(lists_of(cls, version))
    for path in paths:
        inner = sum(len(other) > len(path) and other[: len(path)] == path for other in paths)
        for others in (1, 0) if inner else (1,):
            made = partial(entry, cls, version, 0, path, value=value, others=others)
            sizes = [len(encode_request(made(count=count), version)) for count in (100, 200)]
            each = max((sizes[1] - sizes[0]) // 100, 1)
            name = ".".join(path) + ("" if others else ", empty")
            most = ENTRIES_MAX // (1 + others * inner) - len(paths)
            yield name, version, encode_request(made(count=min(frame_bytes // each, most)), version)
