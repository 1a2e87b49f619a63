"""A bounds-checked cursor over the plain (non-flexible) encoding, for the hand-written codecs.

Every read is checked against the end of the frame, and an array may not announce more elements than the frame can hold.
Garbage raises ProtocolError and allocates nothing.
"""

from __future__ import annotations

import struct
from typing import Final

from klamm.wire.errors import ProtocolError

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


class Cursor:
    __slots__ = ("_end", "_view", "position")

    def __init__(self, view: memoryview, position: int = 0) -> None:
        self._view = view
        self._end = len(view)
        self.position = position

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        position = self.position
        self.position = position + layout.size
        if self.position > self._end:
            raise ProtocolError("the body is shorter than its schema")
        return layout.unpack_from(self._view, position)

    def int16(self) -> int:
        return self.unpack(INT16)[0]

    def int32(self) -> int:
        return self.unpack(INT32)[0]

    def int64(self) -> int:
        return self.unpack(INT64)[0]

    def take(self, size: int) -> memoryview:
        position = self.position
        if size < 0 or position + size > self._end:
            raise ProtocolError(f"a field of {size} bytes, but only {self._end - position} are left")
        self.position = position + size
        return self._view[position : self.position]

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("null where the schema has a string")
        return text

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length == -1:
            return None
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a string is not UTF-8") from None

    def nullable_bytes(self) -> memoryview | None:
        length = self.int32()
        return None if length == -1 else self.take(length)

    def count(self, element_bytes_min: int) -> int:
        """The length of an array whose elements take at least this many bytes each."""
        count = self.int32()
        if not 0 <= count * element_bytes_min <= self._end - self.position:
            raise ProtocolError(f"an array of {count} elements, but only {self._end - self.position} bytes are left")
        return count


def string(text: str) -> bytes:
    raw = text.encode()
    return INT16.pack(len(raw)) + raw


def nullable_string(text: str | None) -> bytes:
    return INT16.pack(-1) if text is None else string(text)
