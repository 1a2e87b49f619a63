"""Compiles the table of a message into a function that decodes one version of it.

The function is safe for untrusted bytes: it compares every length and count with the bytes that are left before it
slices or allocates, so decoding allocates at most a small multiple of the frame's size. Null where the table has none,
text that is not UTF-8, varints over 32 bits, and tags that are too many, out of order or of a wrong size are refused.
Bytes after the message are allowed: Kafka ignores them.

Neighbouring fields of fixed size are unpacked at once, together with the length or count that follows them, and so are
arrays of numbers together with the fields after them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from klamm.model.ports import Buffer
from klamm.wire.errors import ProtocolError
from klamm.wire.schema import FORMATS, SIZES, Field, Schema, Struct
from klamm.wire.source import Source
from klamm.wire.varint import read_uvarint

Reader = Callable[[Buffer], Any]
TAGS_MAX: Final = 64
_LAYOUTS_MAX: Final = 64
TagReader = Callable[[bytes, int, int, Any], int]
"""(bytes, position, end, struct) -> position after the value, which it has put into the struct."""


def compile_reader(cls: Any, version: int) -> Reader:
    schema: Schema = cls.schema
    read = _Compiler(version, schema.is_flexible(version)).compile(cls)

    def reader(body: Buffer) -> Any:
        raw = bytes(body)
        try:
            return read(raw, 0, len(raw))
        except UnicodeDecodeError:
            raise ProtocolError(f"a string in {schema.name} version {version} is not UTF-8") from None
        except (struct.error, IndexError, ValueError) as error:
            raise ProtocolError(f"{schema.name} version {version} of {len(raw)} bytes ends inside a field") from error

    return reader


class _Compiler:
    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._source = Source()
        self._run = _Run(self._source)

    def compile(self, cls: Any) -> Callable[[bytes, int, int], Any]:
        with self._source.block("def read(data, at, end):"):
            self._struct(cls, "message")
            self._source.line("return message")
        return self._compiled(cls.__name__)  # type: ignore[no-any-return]

    def _compile_tag(self, cls: Any, field: Field) -> TagReader:
        with self._source.block("def read(data, at, end, message):"):
            self._field(cls, field, "message")
            self._run.flush()
            self._source.line("return at")
        return self._compiled(f"tag {field.tag} of {cls.__name__}")  # type: ignore[no-any-return]

    def _compiled(self, name: str) -> Any:
        title = f"reader of {name} version {self._version}"
        helpers = {"new": object.__new__, "refuse": _refuse, "long_uvarint": _long_uvarint, "read_tags": _read_tags}
        return self._source.compiled("read", title, **helpers)

    def _struct(self, cls: Any, target: str) -> None:
        self._source.line(f"{target} = new({self._source.constant('Class', cls, cls)})")
        for field in cls.struct.fields(self._version):
            self._field(cls, field, target)
        if not self._flexible:
            self._run.flush()
            return
        tags = self._source.name("tags")
        self._run.add("B", 1, tags)
        self._run.flush()
        known = {
            field.tag: _Compiler(self._version, True)._compile_tag(cls, field)
            for field in cls.struct.tagged_fields(self._version)
        }
        with self._source.block(f"if {tags}:"):
            names = self._source.constant("known", cls, known)
            self._source.line(f"at = read_tags(data, at, end, {tags}, {target}, {names})")

    def _field(self, cls: Any, field: Field, target: str) -> None:
        """Reads the field into an attribute of the variable `target`."""
        attribute = f"{target}.{field.name}"
        nullable = field.is_nullable(self._version)
        if not field.is_array:
            self._value(field, attribute, nullable)
        elif field.type in FORMATS and not nullable:
            count = self._length("i", 4)
            self._run.start_array(FORMATS[field.type], SIZES[field.type], count, attribute, self._flexible)
        else:
            self._array(cls, field, attribute, nullable)

    def _value(self, field: Field, attribute: str, nullable: bool) -> None:
        if field.type in FORMATS:
            self._run.add(FORMATS[field.type], SIZES[field.type], attribute)
            return
        length = self._length("h", 2) if field.type == "string" else self._length("i", 4)
        decode = ".decode()" if field.type == "string" else ""
        with self._unless_null(attribute, length, nullable):
            self._source.line(f"after = at + {length}{' - 1' if self._flexible else ''}")
            with self._source.block("if not at <= after <= end:"):
                self._source.line(f"refuse({field.name!r}, after - at, end - at)")
            self._source.line(f"{attribute} = data[at:after]{decode}")
            self._source.line("at = after")

    def _array(self, cls: Any, field: Field, attribute: str, nullable: bool) -> None:
        count = self._length("i", 4)
        with self._unless_null(attribute, count, nullable):
            if self._flexible:
                self._source.line(f"{count} -= 1")
            smallest = _element_bytes_min(field, self._version, self._flexible)
            with self._source.block(f"if not 0 <= {count} * {smallest} <= end - at:"):
                self._source.line(f"refuse({field.name!r}, {count}, end - at)")
            elements = self._source.name("elements")
            self._source.line(f"{elements} = {attribute} = []")
            with self._source.block(f"for _ in range({count}):"):
                element = self._source.name("element")
                if field.struct is not None:
                    self._struct(getattr(cls, field.struct.name), element)
                else:
                    self._value(field, element, False)
                    self._run.flush()
                self._source.line(f"{elements}.append({element})")

    def _unless_null(self, attribute: str, length: str, nullable: bool) -> AbstractContextManager[None]:
        if not nullable:
            return nullcontext()
        with self._source.block(f"if {length} == {0 if self._flexible else -1}:"):
            self._source.line(f"{attribute} = None")
        return self._source.block("else:")

    def _length(self, letter: str, size: int) -> str:
        """Reads a length or count into a variable. The compact form is one more than the length."""
        length = self._source.name("length")
        self._run.add(*(("B", 1) if self._flexible else (letter, size)), length)
        self._run.flush()
        if self._flexible:
            with self._source.block(f"if {length} > 127:"):
                self._source.line(f"{length}, at = long_uvarint(data, at)")
        return length


class _Run:
    """Neighbouring values that one call unpacks: optionally an array of numbers, then fixed fields."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._clear()

    def _clear(self) -> None:
        self._letters = ""
        self._size = 0
        self._targets: list[str] = []
        self._array: tuple[str, int, str, bool] | None = None

    def add(self, letter: str, size: int, target: str) -> None:
        self._letters += letter
        self._size += size
        self._targets.append(target)

    def start_array(self, letter: str, size: int, count: str, target: str, is_compact: bool) -> None:
        self.flush()
        self._array = letter, size, count, is_compact
        self._targets.append(f"*{target}")

    def flush(self) -> None:
        if not self._targets:
            return
        targets = ", ".join(self._targets) + ("," if len(self._targets) == 1 else "")
        if self._array is None:
            layout = struct.Struct(">" + self._letters)
            unpack = self._source.constant("unpack", self._letters, layout.unpack_from)
            self._source.line(f"{targets} = {unpack}(data, at)")
            self._source.line(f"at += {self._size}")
        else:
            letter, size, count, is_compact = self._array
            layouts = _ArrayLayouts(letter, self._letters, is_compact)
            unpack = self._source.constant("arrays", (letter, self._letters), layouts)
            self._source.line(f"{targets} = {unpack}[{count}](data, at)")
            self._source.line(f"at += {count} * {size} + {self._size - size * is_compact}")
        self._clear()


class _ArrayLayouts(dict[int, Callable[[bytes, int], tuple[Any, ...]]]):
    """How to unpack an array of numbers and the fields after it, by the array's count as it stands on the wire.

    `unpack_from` compares the size with the bytes that are left before it makes anything.
    """

    def __init__(self, letter: str, after: str, is_compact: bool) -> None:
        self._letter = letter
        self._after = after
        self._is_compact = is_compact

    def __missing__(self, announced: int) -> Callable[[bytes, int], tuple[Any, ...]]:
        count = announced - self._is_compact
        if count < 0:
            raise ProtocolError(f"an array has an invalid count: {count}")
        unpack = struct.Struct(f">{count}{self._letter}{self._after}").unpack_from
        if count < _LAYOUTS_MAX:
            self[announced] = unpack
        return unpack


def _element_bytes_min(field: Field, version: int, flexible: bool) -> int:
    """The smallest size of an element on the wire, with everything in it empty."""
    if field.struct is None:
        return SIZES.get(field.type) or (1 if flexible else 2 if field.type == "string" else 4)
    return max(1, _struct_bytes_min(field.struct, version, flexible))


def _struct_bytes_min(layout: Struct, version: int, flexible: bool) -> int:
    size = int(flexible)
    for field in layout.fields(version):
        if field.is_array:
            size += 1 if flexible else 4
        else:
            size += SIZES.get(field.type) or (1 if flexible else 2 if field.type == "string" else 4)
    return size


def _refuse(name: str, announced: int, left: int) -> None:
    if announced < 0:
        raise ProtocolError(f"{name} has an invalid length: {announced}")
    raise ProtocolError(f"{name} announces {announced}, but only {left} bytes are left")


def _long_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """The varint whose first byte, just before `at`, says that there are more."""
    return read_uvarint(data, at - 1)


def _read_tags(data: bytes, at: int, end: int, count: int, target: Any, known: Mapping[int, TagReader]) -> int:
    """Tags must be few, in rising order, and exactly as long as they say. Unknown ones come from newer peers."""
    if count > TAGS_MAX:
        raise ProtocolError(f"too many tagged fields in one struct: at least {TAGS_MAX + 1}")
    previous = -1
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if tag <= previous:
            raise ProtocolError(f"tag {tag} after tag {previous}")
        if size > end - at:
            raise ProtocolError(f"tag {tag} announces {size} bytes, but only {end - at} are left")
        read = known.get(tag)
        if read is not None and read(data, at, at + size, target) != at + size:
            raise ProtocolError(f"tag {tag} does not fill its {size} bytes")
        previous = tag
        at += size
    return at
