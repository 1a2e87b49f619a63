"""The answer of an API that counts bytes: the dispatcher first charges the client's quota, then encodes the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from klamm.model.ports import Buffer


class Metered(NamedTuple):
    size_bytes: int | None
    """What the client's quota is charged. None means that no quota applies."""
    encode: Callable[[int], Sequence[Buffer] | Awaitable[Sequence[Buffer]] | None]
    """Takes the throttle time in milliseconds. None means no answer at all (Produce with acks=0). A wide answer is
    encoded in slices, so it is awaited."""
