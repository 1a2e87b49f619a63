"""The tagged fields that end every struct of the flexible encoding (KIP-482)."""

from __future__ import annotations

from typing import Final

from klamm.wire.errors import ProtocolError
from klamm.wire.varint import read_uvarint

EMPTY_TAGS: Final = b"\x00"


def skip_tags(view: memoryview, position: int) -> int:
    """The position after the tagged fields. Newer peers may send fields that klamm does not know."""
    if position < len(view) and view[position] == 0:
        return position + 1
    try:
        count, position = read_uvarint(view, position)
        for _ in range(count):
            _, position = read_uvarint(view, position)
            size, position = read_uvarint(view, position)
            position += size
            if position > len(view):
                raise IndexError
    except (IndexError, ValueError):
        raise ProtocolError("tagged fields run past the end of the bytes") from None
    return position
