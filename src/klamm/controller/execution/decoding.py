"""The border to the znode codecs: whatever one of them raises becomes a ZNodeError that names the path, so that bad
data in one znode is skipped and reported, however unexpected it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from klamm.model.errors import ZNodeError

T = TypeVar("T")


def decoded(decode: Callable[[str, bytes | None], T], path: str, data: bytes | None) -> T:
    try:
        return decode(path, data)
    except ZNodeError:
        raise
    except Exception as error:
        raise ZNodeError(path, f"{type(error).__name__}: {error}") from error
