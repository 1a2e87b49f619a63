"""The layout of messages as values, parsed from `klamm.wire.tables`, which explains the notation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from klamm.wire.tables import PARAGRAPHS

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of a fixed size, with their format for the `struct` module."""
SIZES: Final = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
_EMPTY: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": b"",
}
_NO_VERSION: Final = 32767
_FIELD: Final = re.compile(
    r"(?P<name>\w+) (?P<array>\[\])?(?P<type>\w+)(?: (?P<versions>[\d+-]+))?"
    r"(?:, (?P<null>null)(?: (?P<null_versions>[\d+-]+))?)?(?:, tag (?P<tag>\d+))?(?: = (?P<default>\S+))?"
)
_HEAD: Final = re.compile(r"(?P<name>\w+) (?P<versions>[\d-]+)(?:, flexible (?P<flexible>\d+)\+)?")


class Versions(NamedTuple):
    first: int
    last: int

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


@dataclass(slots=True)
class Field:
    name: str
    type: str
    """A type of the notation, or the name of a struct. For an array, the type of its elements."""
    is_array: bool
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Any
    """The default of an array that is not null: an empty tuple, for which a message has a new list."""
    struct: Struct | None = None

    def is_nullable(self, version: int) -> bool:
        return self.nullable is not None and self.nullable.has(version)


@dataclass(slots=True)
class Struct:
    name: str
    all_fields: list[Field] = field(default_factory=list)

    def fields(self, version: int) -> list[Field]:
        """Those in the fixed part, in the order of the wire."""
        return [each for each in self.all_fields if each.tag is None and each.versions.has(version)]

    def tagged_fields(self, version: int) -> list[Field]:
        return [each for each in self.all_fields if each.tag is not None and each.versions.has(version)]


@dataclass(slots=True)
class Schema:
    name: str
    versions: Versions
    flexible_from: int
    struct: Struct

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


def schema_of(name: str) -> Schema:
    """Raises KeyError if the tables have no such message."""
    head, *lines = PARAGRAPHS[name].split("\n")
    match = _HEAD.fullmatch(head)
    if match is None:
        raise ValueError(f"cannot read {head!r} in the tables")
    root = Struct(name)
    open_structs = [root]
    """The struct of each depth that the next line may belong to."""
    for line in lines:
        text = line.lstrip()
        depth = (len(line) - len(text)) // 2
        each = _field(text)
        del open_structs[depth + 1 :]
        open_structs[depth].all_fields.append(each)
        if each.struct is not None:
            open_structs.append(each.struct)
    flexible = match["flexible"]
    return Schema(name, _versions(match["versions"]), _NO_VERSION if flexible is None else int(flexible), root)


def _field(text: str) -> Field:
    match = _FIELD.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read {text!r} in the tables")
    versions = _versions(match["versions"])
    nullable = (_versions(match["null_versions"]) if match["null_versions"] else versions) if match["null"] else None
    tag = None if match["tag"] is None else int(match["tag"])
    kind, is_array = match["type"], match["array"] is not None
    struct = Struct(kind) if kind[0].isupper() else None
    return Field(
        match["name"], kind, is_array, versions, nullable, tag, _default(match["default"], kind, is_array), struct
    )


def _versions(text: str | None) -> Versions:
    """
    >>> _versions("3"), _versions("0-2")
    (Versions(first=3, last=3), Versions(first=0, last=2))
    """
    if text is None:
        return Versions(0, _NO_VERSION)
    first, dash, last = text.rstrip("+").partition("-")
    return Versions(int(first), int(last) if dash else _NO_VERSION if text.endswith("+") else int(first))


def _default(text: str | None, kind: str, is_array: bool) -> Any:
    if text is None:
        return () if is_array else _EMPTY.get(kind, 0)
    return {"null": None, "true": True}[text] if text in ("null", "true") else int(text, 0)
