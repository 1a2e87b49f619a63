"""A page of a long table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
ROWS: Final = 50


@dataclass(frozen=True)
class Page(Generic[T]):
    items: Sequence[T]
    number: int
    """From 1."""
    pages: int
    total: int


def page_of(items: Sequence[T], number: str | int | None, rows: int = ROWS) -> Page[T]:
    """A number that is no page, or none, gives the nearest one that is.

    >>> page_of(range(5), "2", rows=2)
    Page(items=range(2, 4), number=2, pages=3, total=5)
    >>> page_of(range(5), "x", rows=2).number, page_of(range(5), 99, rows=2).number
    (1, 3)
    """
    pages = max(-(-len(items) // rows), 1)
    wanted = natural(number, 1)
    chosen = min(max(wanted, 1), pages)
    return Page(items[(chosen - 1) * rows : chosen * rows], chosen, pages, len(items))


def natural(text: str | int | None, default: int) -> int:
    """
    >>> natural("12", 1), natural("-3", 1), natural("9" * 30, 1), natural(None, 7)
    (12, 1, 1, 7)
    """
    if isinstance(text, int):
        return text
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else default
