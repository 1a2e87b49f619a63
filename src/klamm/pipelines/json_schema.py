"""The schema of JSON values, inferred from some of them, as Spark's DDL. Pure.

Integers and fractions of one field become `double`; any other mixture becomes `string`, which keeps the JSON text.
Names that a Delta table cannot have, and fields beyond a limit, are left out: the drift report counts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

FIELDS_MAX: Final = 500
"""The fields that one object may have."""
_DEPTH_MAX: Final = 10
_IMPOSSIBLE: Final = re.compile(r"[ ,;{}()\n\t=`]|^$")
_UNKNOWN: Final = "void"
_TEXT: Final = "string"
_LONG: Final = range(-(2**63), 2**63)


def infer_schema(values: Iterable[bytes | None]) -> str | None:
    """None if none of the values is a JSON object with a field.

    >>> infer_schema([b'{"id": 1, "name": null}', b'broken', b'{"id": 2.5, "tags": ["x"], "at": {"x": true}}'])
    '`at` struct<`x`:boolean>, `id` double, `name` string, `tags` array<string>'
    """
    merged: dict[str, Any] = {}
    for value in values:
        try:
            document = json.loads(value or b"")
        except (ValueError, RecursionError):
            continue
        if isinstance(document, Mapping):
            merged = _merge_fields(merged, _fields(document, _DEPTH_MAX))
    return ", ".join(f"`{name}` {_ddl(kind)}" for name, kind in sorted(merged.items())) or None


def _type_of(value: Any, depth: int) -> Any:
    """A name of Spark, a list of one type for an array, or the types of an object's fields."""
    match value:
        case None:
            return _UNKNOWN
        case bool():
            return "boolean"
        case int():
            return "bigint" if value in _LONG else "double"
        case float():
            return "double"
        case list() if depth:
            kind: Any = _UNKNOWN
            for part in value:
                kind = _merge(kind, _type_of(part, depth - 1))
            return [kind]
        case dict() if depth:
            return _fields(value, depth - 1) or _TEXT
        case _:
            return _TEXT


def _fields(document: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return _merge_fields({}, {name: _type_of(part, depth) for name, part in document.items()})


def _merge(one: Any, other: Any) -> Any:
    if one in (_UNKNOWN, other):
        return other
    if other == _UNKNOWN:
        return one
    if {str(one), str(other)} == {"bigint", "double"}:
        return "double"
    if isinstance(one, list) and isinstance(other, list):
        return [_merge(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        return _merge_fields(one, other)
    return _TEXT


def _merge_fields(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    spelled = {name.lower(): name for name in merged}  # Spark does not tell upper case from lower
    for name, kind in other.items():
        if _IMPOSSIBLE.search(name) or spelled.get(name.lower(), name) != name:
            continue
        if name in merged:
            merged[name] = _merge(merged[name], kind)
        elif len(merged) < FIELDS_MAX:
            merged[name] = kind
            spelled[name.lower()] = name
    return merged


def _ddl(kind: Any) -> str:
    if isinstance(kind, list):
        return f"array<{_ddl(kind[0])}>"
    if isinstance(kind, dict):
        return f"struct<{','.join(f'`{name}`:{_ddl(part)}' for name, part in sorted(kind.items()))}>"
    return _TEXT if kind == _UNKNOWN else str(kind)
