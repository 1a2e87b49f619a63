"""Variable-length integers: unsigned for compact lengths and tags, zigzag for the fields of a record.

Readers take a buffer and a position, and return the value and the next position. They raise IndexError past the end and
ValueError for an encoding that is too long for its type, so that no input makes them build a huge integer.
"""

from __future__ import annotations

from klamm.model.ports import Buffer


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise ValueError("varint exceeds 32 bits")
            return value, position + 1
        shift += 7
        if shift > 28:
            raise ValueError("varint longer than 5 bytes")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Zigzag, up to 64 bits, which timestamps need. A caller that needs 32 bits checks the value itself."""
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise ValueError("varint longer than 10 bytes")


def uvarint(value: int) -> bytes:
    """
    >>> uvarint(0).hex(), uvarint(127).hex(), uvarint(300).hex()
    ('00', '7f', 'ac02')
    """
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """
    >>> varint(-1).hex(), varint(1).hex(), varint(64).hex()
    ('01', '02', '8001')
    """
    return uvarint((value << 1) if value >= 0 else (((-value) << 1) - 1))


_SINGLE = tuple(bytes([value]) for value in range(0x80))
