"""The bytes of `__consumer_offsets`: those that Kafka writes, and all that it ever wrote."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.coordinators.groups.records import (
    BadRecord,
    GroupKey,
    Offset,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
    versions_for,
)
from klamm.model.ids import TopicPartition

T0 = TopicPartition("t", 0)
NOW = 1_600_000_000_000
MEMBER = StoredMember("m-1", "inst", "client", "/127.0.0.1", 60_000, 10_000, b"sub", b"assigned")
STABLE = StoredGroup("consumer", 935, "range", "m-1", NOW, (MEMBER, MEMBER._replace(member_id="m-2", instance_id=None)))


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_the_bytes_of_keys_and_values() -> None:
    key = unhex("0001 0008 6d792d67726f7570 0001 74 00000000")
    assert encode_offset_key("my-group", T0) == key
    assert decode_key(key) == OffsetKey("my-group", T0)
    value = unhex("0003 000000000000002a ffffffff 0000 00000174876e8000")
    assert encode_offset(Offset(42, commit_timestamp=NOW), 3) == value
    assert decode_offset(value) == Offset(42, commit_timestamp=NOW)
    group_key = unhex("0002 0008 6d792d67726f7570")
    assert encode_group_key("my-group") == group_key
    assert decode_key(group_key) == GroupKey("my-group")
    empty = unhex("0003 0008 636f6e73756d6572 00000001 ffff ffff 00000174876e8000 00000000")
    assert encode_group(StoredGroup("consumer", 1, None, None, NOW), 3) == empty
    assert decode_group(empty) == StoredGroup("consumer", 1, None, None, NOW)


def test_key_version_0_is_read() -> None:
    assert decode_key(unhex("0000 0001 67 0001 74 00000003")) == OffsetKey("g", TopicPartition("t", 3))


@pytest.mark.case("OFF-22")
@pytest.mark.parametrize(
    ("protocol", "offset", "group"),
    [
        *(("0.9.0", 1, 0), ("0.10.1", 1, 1), ("2.0", 1, 1)),
        *(("2.1-IV0", 2, 2), ("2.1-IV1", 3, 2), ("2.3-IV0", 3, 3), ("2.4", 3, 3), ("2.6", 3, 3)),
    ],
)
def test_the_versions_that_are_written(protocol: str, offset: int, group: int) -> None:
    versions = versions_for(protocol)
    assert versions == (offset, group)
    value = Offset(5, 7, "meta", NOW)
    assert encode_offset(value, versions.offset_value)[:2] == struct.pack(">h", offset)
    assert encode_group(STABLE, versions.group_value)[:2] == struct.pack(">h", group)
    expires = value._replace(expire_timestamp=NOW + 9)
    assert encode_offset(expires, versions.offset_value)[:2] == b"\x00\x01", "only version 1 has an expiry"
    assert decode_offset(encode_offset(expires, versions.offset_value)).expire_timestamp == NOW + 9
    if offset == 1:
        assert encode_offset(value, 1)[-8:] == b"\xff" * 8


@pytest.mark.case("OFF-21")
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_groups_of_older_formats_are_read(version: int) -> None:
    found = decode_group(encode_group(STABLE, version))
    first = found.members[0]
    assert (found.generation, found.leader, found.protocol) == (935, "m-1", "range")
    assert first.instance_id == ("inst" if version >= 3 else None)
    assert first.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000), "version 0 has the session alone"
    assert found.state_timestamp == (NOW if version >= 2 else None)
    assert found.members[1].instance_id is None
    assert (first.subscription, first.assignment) == (b"sub", b"assigned")


@pytest.mark.case("OFF-21")
def test_offsets_of_older_formats_are_read() -> None:
    body = struct.pack(">q", 5) + b"\x00\x01m" + struct.pack(">q", NOW)
    for version in (0, 2):
        assert decode_offset(struct.pack(">h", version) + body) == Offset(5, -1, "m", NOW)
    assert decode_offset(b"\x00\x01" + body + struct.pack(">q", -1)) == Offset(5, -1, "m", NOW), "-1 means none"
    assert decode_offset(b"\x00\x01" + body + struct.pack(">q", 99)) == Offset(5, -1, "m", NOW, 99)


def test_the_compact_version_4_is_read() -> None:
    offset = b"\x00\x04" + struct.pack(">qi", 5, 7) + b"\x02m" + struct.pack(">q", NOW) + b"\x01\x63\x02ab"
    assert decode_offset(offset) == Offset(5, 7, "m", NOW), "with a tagged field that is not known"
    member = b"\x04m-1\x05inst\x02c\x02h" + struct.pack(">ii", 60_000, 10_000) + b"\x04sub\x01\x00"
    other = b"\x04m-2\x00\x02c\x02h" + struct.pack(">ii", 60_000, 10_000) + b"\x01\x01\x00"
    head = b"\x00\x04\x09consumer" + struct.pack(">i", 3) + b"\x06range\x00" + struct.pack(">q", NOW)
    found = decode_group(head + b"\x03" + member + other + b"\x00")
    assert (found.generation, found.protocol, found.leader) == (3, "range", None)
    assert [(m.member_id, m.instance_id, m.subscription) for m in found.members] == [
        ("m-1", "inst", b"sub"),
        ("m-2", None, b""),
    ]


def test_keys_of_newer_groups_are_told_apart_from_broken_ones() -> None:
    assert decode_key(b"\x00\x03\x00\x01g") is None
    for broken in (None, b"", b"\x00", b"\x00\x01\x00\x09g", b"\xff\xff", b"\x00\x02\x00\x01\xff"):
        with pytest.raises(BadRecord):
            decode_key(broken)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_no_bytes_do_worse_than_bad_record(tail: bytes, version: int) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(struct.pack(">h", version) + tail)
        except BadRecord:
            pass


@given(
    st.builds(
        Offset,
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.text(max_size=20).filter(lambda text: text.isprintable()),
        st.integers(0, 2**62),
        st.none(),
    )
)
def test_what_is_written_is_read(value: Offset) -> None:
    assert decode_offset(encode_offset(value, 3)) == value
