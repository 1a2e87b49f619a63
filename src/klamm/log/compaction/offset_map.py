"""Key -> last offset, for the keys in the dirty part of one log, in a fixed number of bytes.

Kafka's SkimpyOffsetMap: 24 bytes per slot, 16 for a digest of the key and 8 for the offset, with open addressing in
three flat arrays. A dict of the same keys takes seven times the memory, and memory limits how much of a log one pass
cleans. Two keys with the same digest would count as one: with 128 bits this does not happen by chance, and an attacker
cannot construct a collision of this digest (Kafka uses MD5).
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct
from typing import Final

SLOT_BYTES: Final = 24
LOAD_FACTOR: Final = 0.9
_DIGEST = Struct("=QQ")


class OffsetMap:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._capacity = int(slots * LOAD_FACTOR)
        self._high = array("Q", bytes(8 * slots))
        self._low = array("Q", bytes(8 * slots))
        self._next = array("q", bytes(8 * slots))
        """Offset + 1; 0 means that the slot is free."""
        self._count = 0
        self.latest_offset = -1
        """Every key up to this offset is in the map; records above it are not cleaned yet."""

    def __len__(self) -> int:
        return self._count

    @property
    def utilization(self) -> float:
        return self._count / self._slots

    def put(self, key: bytes, offset: int) -> bool:
        """False, and nothing changed, if there is no room for another key."""
        high, low, slot = self._find(key)
        if not self._next[slot]:
            if self._count >= self._capacity:
                return False
            self._count += 1
            self._high[slot], self._low[slot] = high, low
        self._next[slot] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """-1 if the key is not in the map."""
        return self._next[self._find(key)[2]] - 1

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """The digest in two halves, and the slot that holds it or is free for it. At least one slot is always free."""
        high, low = _DIGEST.unpack(blake2b(key, digest_size=_DIGEST.size).digest())
        slots, highs, lows, offsets = self._slots, self._high, self._low, self._next
        slot = high % slots
        while offsets[slot] and (lows[slot] != low or highs[slot] != high):
            slot += 1
            if slot == slots:
                slot = 0
        return high, low, slot


def slots_for(offsets: int, buffer_bytes: int) -> int:
    """The number of slots that a range of `offsets` offsets can need, limited by the buffer.

    >>> slots_for(9, 1 << 20), slots_for(10**9, 1 << 20)
    (12, 43690)
    """
    return max(2, min(int(offsets / LOAD_FACTOR) + 2, buffer_bytes // SLOT_BYTES))
