"""Compiles the table of a message into a function that encodes one version of it.

Neighbouring fields of fixed size are packed at once, together with the length or count that follows them, and so are
arrays of numbers together with the fields after them. A tagged field is written if it differs from its default.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from klamm.wire.schema import FORMATS, Field, Schema, Struct
from klamm.wire.source import Source
from klamm.wire.tags import EMPTY_TAGS
from klamm.wire.varint import uvarint

Writer = Callable[[Any], bytes]
_LAYOUTS_MAX: Final = 64
_BYTE_MAX: Final = 127
"""The largest varint of one byte."""
TagWriter = tuple[int, str, Any, Writer]
"""Tag, name of the field, default, and what writes it."""


def compile_writer(schema: Schema, version: int) -> Writer:
    write = _Compiler(version, schema.is_flexible(version)).compile(schema.struct)

    def writer(message: Any) -> bytes:
        try:
            return write(message)
        except (AttributeError, TypeError, UnicodeError, struct.error) as error:
            error.add_note(f"in {schema.name} version {version}")
            raise

    return writer


def compile_struct_writer(layout: Struct, version: int, *, flexible: bool) -> Writer:
    """The writer of a struct inside a message, for messages that are put together from parts."""
    return _Compiler(version, flexible).compile(layout)


class _Compiler:
    def __init__(self, version: int, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._source = Source()
        self._run = _Run(self._source, flexible)

    def compile(self, layout: Struct, only: Field | None = None) -> Writer:
        """The writer of a struct, or of one tagged field of it."""
        with self._source.block("def write(message):"):
            self._source.line("chunks = []")
            self._source.line("put = chunks.append")
            if only is None:
                self._struct(layout, "message")
            else:
                self._field(only, f"message.{only.name}")
                self._run.flush()
            self._source.line("return join(chunks)")
        title = f"writer of {layout.name} version {self._version}"
        helpers = {"join": b"".join, "uvarint": uvarint, "put_tags": _put_tags}
        return self._source.compiled("write", title, **helpers)  # type: ignore[no-any-return]

    def _struct(self, layout: Struct, target: str) -> None:
        for field in layout.fields(self._version):
            self._field(field, f"{target}.{field.name}")
        if not self._flexible:
            self._run.flush()
            return
        tagged = layout.tagged_fields(self._version)
        if not tagged:
            self._run.add("x")
            self._run.flush()
            return
        self._run.flush()
        known: list[TagWriter] = [
            (field.tag or 0, field.name, field.default, _Compiler(self._version, True).compile(layout, field))
            for field in tagged
        ]
        self._source.line(f"put_tags(put, {target}, {self._source.constant('known', layout.name, known)})")

    def _field(self, field: Field, attribute: str) -> None:
        nullable = field.is_nullable(self._version)
        if not field.is_array:
            self._value(field, attribute, nullable)
            return
        values = self._source.name("values")
        self._source.line(f"{values} = {attribute}")
        if field.type in FORMATS and not nullable:
            self._run.start_array(FORMATS[field.type], values)
            return
        self._length(f"len({values})", values if nullable else None, "i")
        element = self._source.name("element")
        with self._source.block(f"for {element} in {values}{' or ()' if nullable else ''}:"):
            if field.struct is not None:
                self._struct(field.struct, element)
            else:
                self._value(field, element, False)
                self._run.flush()

    def _value(self, field: Field, attribute: str, nullable: bool) -> None:
        if field.type in FORMATS:
            self._run.add(FORMATS[field.type], attribute)
            return
        raw = self._source.name("raw")
        self._source.line(f"{raw} = {attribute}")
        if field.type == "string":
            null = f" if {raw} is not None else None" if nullable else ""
            self._source.line(f"{raw} = {raw}.encode(){null}")
        self._length(f"len({raw})", raw if nullable else None, "h" if field.type == "string" else "i")
        with self._source.block(f"if {raw}:"):
            self._source.line(f"put({raw})")

    def _length(self, length: str, nullable: str | None, letter: str) -> None:
        """Writes a length or count after the run. `nullable` names the value that may be None."""
        if self._flexible:
            count = self._source.name("count")
            null = "" if nullable is None else f" if {nullable} is not None else 0"
            self._source.line(f"{count} = {length} + 1{null}")
            self._run.end_with_uvarint(count)
        else:
            null = "" if nullable is None else f" if {nullable} is not None else -1"
            self._run.add(letter, f"{length}{null}")
            self._run.flush()


class _Run:
    """Neighbouring values that one call packs: fixed fields, optionally an array of numbers, fixed fields."""

    def __init__(self, source: Source, flexible: bool) -> None:
        self._source = source
        self._flexible = flexible
        self._clear()

    def _clear(self) -> None:
        self._before = ""
        self._values: list[str] = []
        self._array: tuple[str, str] | None = None
        self._after = ""

    def add(self, letter: str, value: str | None = None) -> None:
        """A value, or a zero byte, which needs none."""
        if self._array is None:
            self._before += letter
        else:
            self._after += letter
        if value is not None:
            self._values.append(value)

    def start_array(self, letter: str, values: str) -> None:
        if self._array is not None:
            self.flush()
        self._array = letter, values
        self._values += [f"len({values}){' + 1' if self._flexible else ''}", f"*{values}"]

    def end_with_uvarint(self, count: str) -> None:
        if self._array is not None or not self._before:
            self.flush()
            self._source.line(f"put(uvarint({count}))")
            return
        values = ", ".join(self._values)
        long, short = self._packer(self._before), self._packer(self._before + "B")
        with self._source.block(f"if {count} <= {_BYTE_MAX}:"):
            self._source.line(f"put({short}({values}, {count}))")
        with self._source.block("else:"):
            self._source.line(f"put({long}({values}) + uvarint({count}))")
        self._clear()

    def flush(self) -> None:
        if self._array is not None:
            letter, values = self._array
            layouts = _ArrayLayouts(self._before, letter, self._after, self._flexible)
            packers = self._source.constant("arrays", (self._before, letter, self._after), layouts)
            self._source.line(f"put({packers}[len({values})]({', '.join(self._values)}))")
        elif self._before == "x":
            self._source.line(f"put({EMPTY_TAGS!r})")
        elif self._before:
            self._source.line(f"put({self._packer(self._before)}({', '.join(self._values)}))")
        self._clear()

    def _packer(self, letters: str) -> str:
        return self._source.constant("pack", letters, struct.Struct(">" + letters).pack)


class _ArrayLayouts(dict[int, Callable[..., bytes]]):
    """How to pack fixed fields, an array of numbers with its count, and fixed fields, by the array's length."""

    def __init__(self, before: str, letter: str, after: str, is_compact: bool) -> None:
        self._before = before
        self._letter = letter
        self._after = after
        self._is_compact = is_compact

    def __missing__(self, length: int) -> Callable[..., bytes]:
        if self._is_compact and length + 1 > _BYTE_MAX:
            return self._with_long_count(length)
        count = "B" if self._is_compact else "i"
        pack = struct.Struct(f">{self._before}{count}{length}{self._letter}{self._after}").pack
        if length < _LAYOUTS_MAX:
            self[length] = pack
        return pack

    def _with_long_count(self, length: int) -> Callable[..., bytes]:
        before, after = struct.Struct(">" + self._before), struct.Struct(f">{length}{self._letter}{self._after}")

        def pack(*values: Any) -> bytes:
            position = len(self._before.replace("16s", "s").replace("x", ""))
            return before.pack(*values[:position]) + uvarint(length + 1) + after.pack(*values[position + 1 :])

        return pack


def _put_tags(put: Callable[[bytes], None], message: Any, known: list[TagWriter]) -> None:
    present = []
    for tag, name, default, write in known:
        value = getattr(message, name)
        if value != ([] if default == () else default):
            present.append((tag, write(message)))
    put(uvarint(len(present)))
    for tag, raw in present:
        put(uvarint(tag) + uvarint(len(raw)) + raw)
