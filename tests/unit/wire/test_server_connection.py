"""The server's side of a connection, without IO: frames from any split of the bytes, one request at a time."""

from __future__ import annotations

import struct

import pytest

from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.server_connection import (
    LARGE_BYTES,
    RECORDLESS_BYTES_MAX,
    RequestHeader,
    ServerConnection,
    request_head,
    response_head,
)

HEADERS = [
    RequestHeader(ApiKey.METADATA, 1, 1, "client"),
    RequestHeader(ApiKey.METADATA, 9, 2, "ünïcode"),
    RequestHeader(ApiKey.METADATA, 9, 3, None),
    RequestHeader(ApiKey.CONTROLLED_SHUTDOWN, 0, 2**31 - 1, None),
    RequestHeader(ApiKey.API_VERSIONS, 3, -5, ""),
]
BODIES = [b"", b"body", bytes(1000), b"x", b"yz"]
STREAM = b"".join(request_head(header, len(body)) + body for header, body in zip(HEADERS, BODIES, strict=True))


@pytest.mark.parametrize("step", [1, 3, 7, 100, len(STREAM)])
def test_requests_from_any_split(step: int) -> None:
    wire = ServerConnection(10_000)
    found = []
    for start in range(0, len(STREAM), step):
        wire.feed(STREAM[start : start + step])
        while (request := wire.next_request()) is not None:
            found.append((request.header, bytes(request.body)))
            wire.answered()
    assert found == list(zip(HEADERS, BODIES, strict=True))
    assert wire.buffered_bytes == 0


def test_the_next_request_waits_for_the_answer() -> None:
    wire = ServerConnection(10_000)
    wire.feed(STREAM)
    first = wire.next_request()
    assert first is not None
    assert wire.next_request() is None
    wire.feed(STREAM)
    assert wire.next_request() is None
    wire.answered()
    second = wire.next_request()
    assert second is not None
    assert (first.header.correlation_id, second.header.correlation_id) == (1, 2)


def test_tags_in_a_request_header_are_skipped() -> None:
    payload = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x02\x00\x01a\x05\x00" + b"body"
    wire = ServerConnection(10_000)
    wire.feed(struct.pack(">i", len(payload)) + payload)
    request = wire.next_request()
    assert request is not None
    assert bytes(request.body) == b"body"


def test_a_frame_is_refused_by_its_size_before_it_arrives() -> None:
    for size in (-1, 0, 7, 10_001, 2**31 - 1):
        wire = ServerConnection(10_000)
        wire.feed(struct.pack(">i", size))
        with pytest.raises(ProtocolError):
            wire.next_request()
    wire = ServerConnection(10_000)
    wire.feed(struct.pack(">i", 10_000))
    assert wire.next_request() is None


def test_response_heads() -> None:
    assert response_head(HEADERS[0], 10) == struct.pack(">ii", 14, 1)
    assert response_head(HEADERS[1], 10) == struct.pack(">iib", 15, 2, 0)
    assert response_head(HEADERS[4], 10) == struct.pack(">ii", 14, -5), (
        "the response header of ApiVersions is never flexible"
    )


def test_only_records_make_a_request_large() -> None:
    """The first bytes have the key, so a large request without records is refused at once."""
    for key, is_refused in ((ApiKey.METADATA, True), (ApiKey.PRODUCE, False), (999, True)):
        wire = ServerConnection(100 << 20)
        wire.feed(struct.pack(">i", RECORDLESS_BYTES_MAX + 1))
        assert wire.next_request() is None
        wire.feed(struct.pack(">h", key))
        if is_refused:
            with pytest.raises(ProtocolError, match="without records"):
                wire.next_request()
        else:
            assert wire.next_request() is None
    brokers = ServerConnection(100 << 20, recordless_bytes_max=100 << 20)
    brokers.feed(struct.pack(">ih", RECORDLESS_BYTES_MAX + 1, ApiKey.UPDATE_METADATA))
    assert brokers.next_request() is None


def test_a_large_frame_is_not_copied_and_leaves_the_next_one() -> None:
    header = RequestHeader(ApiKey.PRODUCE, 8, 1, "client")
    body = bytes(range(256)) * (LARGE_BYTES // 256)
    wire = ServerConnection(2 * LARGE_BYTES)
    wire.feed(request_head(header, len(body)) + body)
    buffer = wire._buffer
    wire.feed(STREAM)
    request = wire.next_request()
    assert request is not None
    assert request.body.obj is buffer and request.body.readonly
    wire.answered()
    following = wire.next_request()
    assert following is not None and following.header == HEADERS[0]
    wire.feed(bytes(100))
    assert bytes(request.body) == body, "what arrives later does not change it"
