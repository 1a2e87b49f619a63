"""The four compression codecs of a record batch, each with a limit on the decompressed size.

A batch of a few kilobytes can claim to hold gigabytes, so no declared size is trusted: every decompressor writes at
most `max_bytes` and refuses larger data. Framing differs by client: Java frames snappy in xerial blocks, librdkafka and
franz-go send one raw block. Java refuses LZ4 frames with linked blocks, so klamm never writes those.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

import cramjam

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import Buffer

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES: Final = 32 * 1024
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
FIRST_GUESS_BYTES: Final = 64 * 1024
GZIP_WBITS: Final = 31
_I32 = struct.Struct(">i")


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Buffer) -> bytes:
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            deflate = zlib.compressobj(wbits=GZIP_WBITS)
            return deflate.compress(data) + deflate.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            encoder = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
            encoder.compress(bytes(data))
            return bytes(encoder.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(bytes(data)))
        case _:
            raise unknown_codec(codec)


def decompress(codec: int, data: Buffer, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Raises KafkaError: CORRUPT_MESSAGE if the data does not decompress, MESSAGE_TOO_LARGE if it exceeds the limit."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _decompress_gzip(data, max_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(data, max_bytes)
        case Codec.LZ4 | Codec.ZSTD:
            return _decompress_growing(cramjam.lz4 if codec == Codec.LZ4 else cramjam.zstd, data, max_bytes)
        case _:
            raise unknown_codec(codec)


def unknown_codec(codec: int) -> KafkaError:
    return KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")


def _corrupt(name: str, reason: object) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{name} data does not decompress: {reason}")


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"decompressed records exceed {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """One member or several back to back: RFC 1952 allows both, and clients send both."""
    parts: list[bytes] = []
    remaining, rest = max_bytes, bytes(data)
    while rest:
        inflate = zlib.decompressobj(wbits=GZIP_WBITS)
        try:
            part = inflate.decompress(rest, remaining + 1)
        except zlib.error as error:
            raise _corrupt("gzip", error) from error
        remaining -= len(part)
        if remaining < 0:
            raise _too_large(max_bytes)
        if not inflate.eof:
            raise _corrupt("gzip", "the data ends too early")
        parts.append(part)
        rest = inflate.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + XERIAL_BLOCK_BYTES])))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, max_bytes)
    parts: list[bytes] = []
    position, remaining = 0, max_bytes
    while position < len(view):
        if bytes(view[position : position + len(XERIAL_MAGIC)]) == XERIAL_MAGIC:  # streams may follow each other
            position += len(XERIAL_HEADER)
            if position > len(view):
                raise _corrupt("snappy", "the data ends inside its header")
            continue
        if position + 4 > len(view):
            raise _corrupt("snappy", "the data ends inside a block length")
        (length,) = _I32.unpack_from(view, position)
        position += 4
        if not 0 < length <= len(view) - position:
            raise _corrupt("snappy", f"a block of {length} bytes where {len(view) - position} are left")
        block = _decompress_snappy_block(view[position : position + length], remaining, max_bytes)
        remaining -= len(block)
        position += length
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, remaining: int, max_bytes: int) -> bytes:
    """Raw snappy declares its size up front and writes exactly that much, so the declared size can be checked."""
    raw = bytes(block)
    try:
        if cramjam.snappy.decompress_raw_len(raw) > remaining:
            raise _too_large(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(raw))
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error


def _decompress_growing(library: object, data: Buffer, max_bytes: int) -> memoryview:
    """Decompress into a buffer that grows fourfold while it is too small: the declared size, if any, may be false.

    The library tells "too small" from "corrupt" only by its message, so garbage may cost a few rounds within the limit.
    """
    raw = bytes(data)
    size = min(max_bytes, max(FIRST_GUESS_BYTES, 8 * len(raw)))
    while True:
        output = bytearray(size)
        try:
            written = library.decompress_into(raw, output)  # type: ignore[attr-defined]
            return memoryview(output)[:written].toreadonly()
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise _corrupt("lz4" if library is cramjam.lz4 else "zstd", error) from error
            if size >= max_bytes:
                raise _too_large(max_bytes) from error
        size = min(max_bytes, 4 * size)
