"""Walks a message by its schema before kafka-python decodes it, and refuses what that decoder would let through.

kafka-python cuts strings at the end of the buffer, reads a negative count as an empty array, accepts null where the
schema has none, follows a varint of any length, and copies the rest of the buffer for every tag section. This check
compares each length and count with the remaining bytes, so that decoding allocates at most a small multiple of the
frame's size. It does not read field values; it only adds up positions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from klamm.wire.errors import ProtocolError
from klamm.wire.varint import read_uvarint

Walk = Callable[[memoryview, int, int], int]
"""(view, position, end) -> position after the value. Raises ProtocolError, IndexError, ValueError or struct.error."""

FIXED_BYTES: Final = {
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "bitfield": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
TAGS_MAX: Final = 64
TAG_COPY_BYTES_FREE: Final = 1024 * 1024
TAG_COPY_FACTOR: Final = 8
"""The decoder copies the rest of the buffer for each tag section that is not empty. All copies together may be at most
this many times the size of the message."""
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class BoundsCheck:
    """The check for one kafka-python struct in one version; compiled once, used for every such message."""

    def __init__(self, message_struct: Any, version: int, flexible: bool) -> None:
        self._copied = 0
        self._walk = _walk_of(message_struct, version, flexible, self._charge)

    def __call__(self, view: memoryview) -> None:
        """Bytes after the message are allowed: Kafka ignores them."""
        end = len(view)
        self._copied = -max(TAG_COPY_BYTES_FREE, TAG_COPY_FACTOR * end)
        try:
            self._walk(view, 0, end)
        except (IndexError, ValueError, struct.error) as error:
            raise ProtocolError(f"the body of {end} bytes ends inside a field") from error

    def _charge(self, copied: int) -> None:
        self._copied += copied
        if self._copied > 0:
            raise ProtocolError("too many tagged fields")


Charge = Callable[[int], None]


def _walk_of(message_struct: Any, version: int, flexible: bool, charge: Charge) -> Walk:
    steps: list[Walk] = []
    fixed = 0
    for field in message_struct.untagged_fields(version):
        size = FIXED_BYTES.get(field.type_str, 0) if not field.is_array() and not field.is_struct() else 0
        if size:
            fixed += size
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(_walk_of_field(field, version, flexible, charge))
    if fixed:
        steps.append(_skip(fixed))
    if flexible:
        tagged = _tagged(message_struct, version)
        steps.append(_tags({field.tag: _walk_of_field(field, version, True, charge) for field in tagged}, charge))
    return steps[0] if len(steps) == 1 else _sequence(tuple(steps))


def _tagged(message_struct: Any, version: int) -> list[Any]:
    return [
        field
        for field in message_struct.fields.values()
        if field.for_version_q(version) and field.tagged_field_q(version)
    ]


def _walk_of_field(field: Any, version: int, flexible: bool, charge: Charge, *, is_element: bool = False) -> Walk:
    # In kafka-python the elements of a nullable array are nullable too; in Kafka they are not.
    nullable = not is_element and field.nullable_for_version_q(version)
    if field.is_struct_array():
        walk = _walk_of(field.array_of, version, flexible, charge)
        return _array(field.name, walk, _struct_bytes_min(field.array_of, version, flexible), nullable, flexible)
    if field.is_array():
        walk = _walk_of_field(field.array_of, version, flexible, charge, is_element=True)
        return _array(field.name, walk, _field_bytes_min(field.array_of, version, flexible), nullable, flexible)
    if field.is_struct():
        inner = _walk_of(field, version, flexible, charge)
        return _nullable_struct(inner) if nullable else inner
    if field.type_str in FIXED_BYTES:
        return _skip(FIXED_BYTES[field.type_str])
    if flexible:
        return _compact_bytes(field.name, nullable)
    return _string(field.name, nullable) if field.type_str == "string" else _bytes(field.name, nullable)


def _struct_bytes_min(message_struct: Any, version: int, flexible: bool) -> int:
    """The smallest size of a value on the wire, with everything in it empty."""
    fields = message_struct.untagged_fields(version)
    return max(1, sum(_field_bytes_min(field, version, flexible) for field in fields) + flexible)


def _field_bytes_min(field: Any, version: int, flexible: bool) -> int:
    if field.is_struct_array() or field.is_array():
        return 1 if flexible else _I32.size
    if field.is_struct():
        return 1 if field.nullable_for_version_q(version) else _struct_bytes_min(field, version, flexible)
    if field.type_str in FIXED_BYTES:
        return FIXED_BYTES[field.type_str]
    if flexible:
        return 1
    return _I16.size if field.type_str == "string" else _I32.size


def _skip(size: int) -> Walk:
    def walk(_view: memoryview, position: int, end: int) -> int:
        if position + size > end:
            raise ProtocolError(f"the body of {end} bytes ends inside a field")
        return position + size

    return walk


def _sequence(steps: tuple[Walk, ...]) -> Walk:
    def walk(view: memoryview, position: int, end: int) -> int:
        for step in steps:
            position = step(view, position, end)
        return position

    return walk


def _string(name: str, nullable: bool) -> Walk:
    return _prefixed(name, nullable, _I16)


def _bytes(name: str, nullable: bool) -> Walk:
    return _prefixed(name, nullable, _I32)


def _prefixed(name: str, nullable: bool, prefix: struct.Struct) -> Walk:
    def walk(view: memoryview, position: int, end: int) -> int:
        (length,) = prefix.unpack_from(view, position)
        return _after(name, nullable, length, position + prefix.size, end)

    return walk


def _compact_bytes(name: str, nullable: bool) -> Walk:
    def walk(view: memoryview, position: int, end: int) -> int:
        length, position = read_uvarint(view, position)
        return _after(name, nullable, length - 1, position, end)

    return walk


def _after(name: str, nullable: bool, length: int, position: int, end: int) -> int:
    if length < 0:
        if length != -1 or not nullable:
            raise ProtocolError(f"{name} has an invalid length: {length}")
        return position
    if length > end - position:
        raise ProtocolError(f"{name} announces {length} bytes, but only {end - position} are left")
    return position + length


def _array(name: str, element: Walk, element_bytes_min: int, nullable: bool, flexible: bool) -> Walk:
    def walk(view: memoryview, position: int, end: int) -> int:
        if flexible:
            count, position = read_uvarint(view, position)
            count -= 1
        else:
            (count,) = _I32.unpack_from(view, position)
            position += 4
        if count < 0:
            if count != -1 or not nullable:
                raise ProtocolError(f"{name} has an invalid count: {count}")
            return position
        if count * element_bytes_min > end - position:
            raise ProtocolError(f"{name} announces {count} elements, but only {end - position} bytes are left")
        for _ in range(count):
            position = element(view, position, end)
        return position

    return walk


def _nullable_struct(inner: Walk) -> Walk:
    def walk(view: memoryview, position: int, end: int) -> int:
        return position + 1 if view[position] == 0xFF else inner(view, position + 1, end)

    return walk


def _tags(known: dict[int, Walk], charge: Charge) -> Walk:
    """Tags must be few, in rising order, and exactly as long as they say. Counts the bytes that decoding copies."""

    def walk(view: memoryview, position: int, end: int) -> int:
        if view[position] == 0:
            return position + 1
        charge(end - position)
        count, position = read_uvarint(view, position)
        if count > TAGS_MAX:
            raise ProtocolError(f"{count} tagged fields in one struct")
        previous = -1
        for _ in range(count):
            tag, position = read_uvarint(view, position)
            size, position = read_uvarint(view, position)
            if tag <= previous:
                raise ProtocolError(f"tag {tag} after tag {previous}")
            if size > end - position:
                raise ProtocolError(f"tag {tag} announces {size} bytes, but only {end - position} are left")
            value = known.get(tag)
            if value is not None and value(view, position, position + size) != position + size:
                raise ProtocolError(f"tag {tag} does not fill its {size} bytes")
            previous = tag
            position += size
        return position

    return walk
