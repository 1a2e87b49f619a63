"""Finds wide messages, and frees them in slices: freeing a million objects at once would hold the loop, in any thread.

The lists of a message are emptied, so a handler must not keep a list of its request. It may keep what is in it.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from typing import Any, Final

from klamm.wire.messages import Message

OBJECTS_PER_SLICE: Final = 10_000


def freed(held: Any) -> Generator[None, None, None]:
    """Empties a message, a list or a dict from its end, and yields after each slice."""
    if isinstance(held, dict):
        yield from _pop_items(held)
    elif isinstance(held, list):
        yield from _pop_entries(held)
    else:
        for entries in _lists(held):
            yield from _pop_entries(entries)


def is_wide(message: Message, entries_max: int) -> bool:
    """Whether its lists have more than so many entries, those of their entries included."""
    left = entries_max
    pending = _lists(message)
    while pending:
        entries = pending.pop()
        left -= len(entries)
        if left < 0:
            return True
        if entries and _list_names(entries[0].__class__):
            for entry in entries:
                pending += _lists(entry)
    return False


def _pop_items(items: dict[Any, Any]) -> Generator[None, None, None]:
    while items:
        for _ in range(min(len(items), OBJECTS_PER_SLICE)):
            items.popitem()
        yield


def _pop_entries(entries: list[Any]) -> Generator[None, None, None]:
    left = OBJECTS_PER_SLICE
    while entries:
        if not _list_names(entries[-1].__class__):
            del entries[-left:]
            left = 0
        else:
            inner = _lists(entries[-1])
            size = sum(map(len, inner))
            if size > OBJECTS_PER_SLICE:
                for each in inner:
                    yield from _pop_entries(each)
            entries.pop()
            left -= 1 + size
        if left <= 0:
            left = OBJECTS_PER_SLICE
            yield


def _lists(held: Any) -> list[list[Any]]:
    values = [getattr(held, name) for name in _list_names(held.__class__)]
    return [value for value in values if isinstance(value, list)]


@cache
def _list_names(cls: Any) -> tuple[str, ...]:
    if not issubclass(cls, Message):
        return ()
    return tuple(field.name for field in cls.struct.all_fields if field.is_array)
