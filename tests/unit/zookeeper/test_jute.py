"""The wire format in both directions: sizes as ZooKeeper sends them, and data that does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.model import errors
from klamm.model.ports import OPEN_ACL, Acl, Stat, WatchEvent, WatchKind
from klamm.zookeeper import jute

STAT = Stat(1, 2, 3, 4, 5, 6, 7, -8, 9, 10, 11)


def test_sizes_of_the_handshake() -> None:
    assert len(jute.ConnectRequest(0, 1000).pack()) == 45
    assert len(jute.ConnectRequest(0, 1000, read_only=None).pack()) == 44
    assert len(jute.ConnectResponse(1000, 1, bytes(16)).pack()) == 37
    assert len(jute.ConnectResponse(1000, 1, bytes(16), None).pack()) == 36


@pytest.mark.parametrize("read_only", [None, False, True])
def test_handshake_round_trip(read_only: bool | None) -> None:
    request = jute.ConnectRequest(2**62, 6000, -5, b"p" * 16, read_only)
    assert jute.ConnectRequest.unpack(request.pack()) == request
    response = jute.ConnectResponse(6000, -5, b"p" * 16, read_only)
    assert jute.ConnectResponse.unpack(response.pack()) == response


def test_a_null_password_is_taken() -> None:
    packed = jute.ConnectRequest(0, 1000, 0, b"").pack()
    assert jute.ConnectRequest.unpack(packed[:24] + b"\xff\xff\xff\xff" + packed[28:]).password == b""


def test_records_round_trip() -> None:
    assert jute.JuteReader(jute.pack_stat(STAT)).stat() == STAT
    assert len(jute.pack_stat(STAT)) == 68
    acl = (*OPEN_ACL, Acl(1, "digest", "ü:x"))
    assert jute.JuteReader(jute.pack_acl(acl)).acl() == acl
    assert jute.JuteReader(b"\xff\xff\xff\xff").acl() == ()
    assert jute.JuteReader(jute.pack_strings(["a", "", "ü"])).strings() == ["a", "", "ü"]


def test_null_and_empty_stay_different() -> None:
    reader = jute.JuteReader(
        jute.pack_buffer(None) + jute.pack_buffer(b"") + jute.pack_string(None) + jute.pack_string("")
    )
    assert [reader.buffer(), reader.buffer(), reader.string(), reader.string()] == [None, b"", None, ""]
    assert reader.remaining == 0


def test_an_event_is_a_frame_with_xid_minus_1() -> None:
    frame = jute.event_frame(WatchEvent(WatchKind.CREATED, "/a"), zxid=7)
    assert jute.INT.unpack_from(frame)[0] == len(frame) - 4
    assert jute.REPLY_HEADER.unpack_from(frame, 4) == (-1, 7, 0)
    assert jute.JuteReader(frame, 20).watch_event() == WatchEvent(WatchKind.CREATED, "/a")


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (b"\0\0\0", jute.JuteReader.int32),
        (b"\0" * 7, jute.JuteReader.int64),
        (b"", jute.JuteReader.boolean),
        (b"\0\0\0\x05abc", jute.JuteReader.buffer),
        (b"\xff\xff\xff\xfe", jute.JuteReader.buffer),
        (b"\0\0\0\x01\xff", jute.JuteReader.string),
        (b"\xff\xff\xff\xff", jute.JuteReader.path),
        (b"\xff\xff\xff\xff", jute.JuteReader.strings),
        (b"\x7f\xff\xff\xff", jute.JuteReader.strings),
        (b"\x7f\xff\xff\xff", jute.JuteReader.acl),
        (b"\0" * 67, jute.JuteReader.stat),
        (b"\0\0\0\x63\0\0\0\x03\0\0\0\x01/", jute.JuteReader.watch_event),
    ],
)
def test_what_does_not_fit_is_a_marshalling_error(data: bytes, read: Callable[[jute.JuteReader], object]) -> None:
    with pytest.raises(errors.MarshallingError):
        read(jute.JuteReader(data))


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-101, errors.NoNode), (-103, errors.BadVersion), (-110, errors.NodeExists), (-112, errors.SessionExpired)],
)
def test_codes_have_their_errors(code: int, kind: type[errors.ZooKeeperError]) -> None:
    error = jute.error_for(code, "/a")
    assert type(error) is kind
    assert (error.code, error.path) == (code, "/a")


def test_a_code_without_a_class_keeps_its_number() -> None:
    error = jute.error_for(-124, "/a")
    assert (type(error), error.code, str(error)) == (
        errors.ZooKeeperError,
        -124,
        "ZooKeeperError /a: server requires SASL",
    )
    assert errors.ZooKeeperError.code == -1
