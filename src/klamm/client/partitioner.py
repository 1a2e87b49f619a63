"""Which partition a record goes to: by the hash of its key, as in the Java client, so that all clients agree."""

from __future__ import annotations

from typing import Final

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """
    >>> [partition_of(key, 10) for key in (b"a", b"order-1", b"")]
    [4, 6, 1]
    """
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """MurmurHash2 with 32 bits, unsigned."""
    whole = len(data) & ~3
    value = _SEED ^ len(data)
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        part = (part ^ part >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15
