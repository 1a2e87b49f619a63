"""The server's side of a connection, without IO: bytes in, one request at a time out.

Kafka answers the requests of a connection strictly in order, and clients rely on it: the next request comes out only
after the previous one is answered (`answered`). Clients may send garbage: anything but a frame of a sane size with a
known header raises ProtocolError with the reason, and the connection closes. A frame never takes more memory than the
bytes that have arrived.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.tags import EMPTY_TAGS, skip_tags

SIZE: Final = struct.Struct(">i")
HEADER: Final = struct.Struct(">hhi")
INT16: Final = struct.Struct(">h")
CORRELATION: Final = struct.Struct(">i")
HEADER_BYTES_MIN: Final = 8
"""Every request has at least key, version and correlation id."""
RECORDLESS_BYTES_MAX: Final = 16 * 1024 * 1024
"""The limit for a client's request without records. Decoded, it takes up to fifty times its size, and no honest one is
that large: 200,000 partitions fit."""
LARGE_BYTES: Final = 1 << 20


class RequestHeader(NamedTuple):
    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


class ReceivedRequest(NamedTuple):
    header: RequestHeader
    body: memoryview


class ServerConnection:
    def __init__(self, frame_bytes_max: int, *, recordless_bytes_max: int = RECORDLESS_BYTES_MAX) -> None:
        """`recordless_bytes_max` applies to requests other than Produce."""
        self._frame_bytes_max = frame_bytes_max
        self._recordless_bytes_max = recordless_bytes_max
        self._buffer = bytearray()
        self._busy = False

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    @property
    def frame_bytes(self) -> int | None:
        """The size of the frame that comes next, as it announces it; None while that is not known."""
        if len(self._buffer) < SIZE.size:
            return None
        return SIZE.size + int(SIZE.unpack_from(self._buffer)[0])

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def answered(self) -> None:
        """The current request is finished: the next one may be taken."""
        self._busy = False

    def next_request(self) -> ReceivedRequest | None:
        """The next request. None if it is not complete yet, or if the previous one is not answered yet."""
        if self._busy or len(self._buffer) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._buffer)
        if not HEADER_BYTES_MIN <= size <= self._frame_bytes_max:
            raise ProtocolError(f"frame of {size} bytes: it must have {HEADER_BYTES_MIN} to {self._frame_bytes_max}")
        if size > self._recordless_bytes_max and len(self._buffer) >= SIZE.size + INT16.size:
            (key,) = INT16.unpack_from(self._buffer, SIZE.size)
            if key != ApiKey.PRODUCE:
                raise ProtocolError(
                    f"request {key} of {size} bytes: the limit is {self._recordless_bytes_max} without records"
                )
        end = SIZE.size + size
        if len(self._buffer) < end:
            return None
        request = parse_request(self._taken(end))
        self._busy = True
        return request

    def _taken(self, end: int) -> memoryview:
        """The frame, which leaves the buffer. A large one is not copied: that would hold the loop."""
        if end < LARGE_BYTES:
            frame = memoryview(bytes(memoryview(self._buffer)[SIZE.size : end]))
            del self._buffer[:end]
            return frame
        taken, self._buffer = self._buffer, self._buffer[end:]
        return memoryview(taken)[SIZE.size : end].toreadonly()


def parse_request(frame: memoryview) -> ReceivedRequest:
    key, version, correlation_id = HEADER.unpack_from(frame)
    try:
        api_key = ApiKey(key)
    except ValueError:
        raise ProtocolError(f"unknown API key {key}") from None
    position = HEADER.size
    header_version = APIS[api_key].request_header_version(version)
    client_id = None
    if header_version >= 1:
        client_id, position = _client_id(frame, position)
    if header_version >= 2:
        position = skip_tags(frame, position)
    return ReceivedRequest(RequestHeader(api_key, version, correlation_id, client_id), frame[position:])


def _client_id(frame: memoryview, position: int) -> tuple[str | None, int]:
    """A plain nullable string, even in flexible headers."""
    if len(frame) < position + INT16.size:
        raise ProtocolError("the request ends inside its header")
    (length,) = INT16.unpack_from(frame, position)
    position += INT16.size
    if length == -1:
        return None, position
    if length < -1 or position + length > len(frame):
        raise ProtocolError(f"client id of {length} bytes, but only {len(frame) - position} are left")
    try:
        return str(frame[position : position + length], "utf-8"), position + length
    except UnicodeDecodeError:
        raise ProtocolError("the client id is not UTF-8") from None


def response_head(header: RequestHeader, body_bytes: int) -> bytes:
    """What precedes a response body: size, correlation id and, where the version has it, an empty tag section."""
    tags = EMPTY_TAGS if APIS[header.api_key].response_header_version(header.api_version) >= 1 else b""
    return SIZE.pack(CORRELATION.size + len(tags) + body_bytes) + CORRELATION.pack(header.correlation_id) + tags


def request_head(header: RequestHeader, body_bytes: int) -> bytes:
    """What precedes a request body: size and header."""
    head = HEADER.pack(header.api_key, header.api_version, header.correlation_id)
    header_version = APIS[header.api_key].request_header_version(header.api_version)
    if header_version >= 1:
        if header.client_id is None:
            head += INT16.pack(-1)
        else:
            name = header.client_id.encode()
            head += INT16.pack(len(name)) + name
    if header_version >= 2:
        head += EMPTY_TAGS
    return SIZE.pack(len(head) + body_bytes) + head
