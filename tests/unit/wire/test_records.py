"""Record batches: kafka-python reads ours and the other way round, and garbage is refused with a reason."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from collections.abc import Callable

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.batch import pack_batch
from klamm.wire.compression import XERIAL_HEADER, Codec, compress, decompress
from klamm.wire.records import (
    NEXT_OFFSET,
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    check_crc,
    has_valid_crc,
    iter_batches,
    iter_records,
    patch_max_timestamp,
    patch_offset_and_epoch,
    read_end_transaction_marker,
    read_header,
    whole_batches_bytes,
)

CODECS = list(Codec)
SHARED_CODECS = [Codec.NONE, Codec.GZIP]
"""The codecs that kafka-python has without further libraries; the interop tests cover the others with Java and
    librdkafka."""
RECORDS = [
    Record(b"k", b"v" * 500, 1_000, (("h", b"1"), ("none", None))),
    Record(None, b"v" * 500, 990),
    Record(b"tombstone", None, 2_000),
    Record(b"", b"", 1_500),
]

records = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=200),
        st.integers(0, 2**42),
        st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3).map(tuple),
        st.just(NEXT_OFFSET),
    ),
    min_size=1,
    max_size=8,
)


def peak_of(call: Callable[[], object]) -> int:
    """The peak of Python's allocations, including results of the compression libraries."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def code_of(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


@pytest.mark.parametrize("codec", CODECS)
@given(records=records)
def test_round_trip(codec: Codec, records: list[Record]) -> None:
    batch = build_batch(records, base_offset=7, codec=codec)
    assert list(iter_records(batch)) == [record._replace(offset=7 + i) for i, record in enumerate(records)]
    header = read_header(batch)
    assert has_valid_crc(batch, 0, header)
    assert (header.codec, header.count, header.last_offset) == (codec, len(records), 6 + len(records))
    assert header.max_timestamp == max(record.timestamp for record in records)


@pytest.mark.parametrize("codec", SHARED_CODECS)
def test_kafka_python_reads_ours(codec: Codec) -> None:
    batch = build_batch(RECORDS, base_offset=42, codec=codec, producer_id=9, producer_epoch=3, base_sequence=17)
    theirs = MemoryRecords(batch).next_batch()
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (42, 9, 3, 17)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == [
        (42 + i, r.timestamp, r.key, r.value) for i, r in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("codec", SHARED_CODECS)
def test_we_read_what_kafka_python_writes(codec: Codec) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 20)
    for record in RECORDS:
        builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    batch = bytes(builder.buffer())
    assert [r._replace(offset=-1) for r in iter_records(batch)] == RECORDS
    ((position, header),) = iter_batches(batch)
    check_crc(batch, position, header)


def test_raw_snappy_as_librdkafka_sends_it() -> None:
    plain = build_batch(RECORDS)
    payload = bytes(cramjam.snappy.compress_raw(plain[61:]))
    batch = pack_batch(read_header(plain)._replace(attributes=Codec.SNAPPY), payload)
    assert [r._replace(offset=-1) for r in iter_records(batch)] == RECORDS


def test_several_streams_back_to_back() -> None:
    one, two = b"one" * 30_000, b"two" * 10
    assert bytes(decompress(Codec.GZIP, gzip.compress(one) + gzip.compress(two))) == one + two
    assert bytes(decompress(Codec.SNAPPY, compress(Codec.SNAPPY, one) + compress(Codec.SNAPPY, two))) == one + two


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_is_bounded(codec: Codec) -> None:
    bomb = compress(codec, bytes(10_000_000))
    assert code_of(lambda: decompress(codec, bomb, 1_000_000)) is ErrorCode.MESSAGE_TOO_LARGE
    assert len(decompress(codec, bomb, 10_000_000)) == 10_000_000


@pytest.mark.parametrize("codec", CODECS[1:])
def test_garbage_does_not_decompress(codec: Codec) -> None:
    good = compress(codec, b"abcdefgh" * 5_000)
    rng = random.Random(codec)
    for data in (b"\xff", good[:-1], rng.randbytes(500), good[:20] + rng.randbytes(30)):
        assert code_of(lambda data=data: decompress(codec, data)) in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.MESSAGE_TOO_LARGE,
        )


def test_zstd_without_a_content_size_as_java_sends_it() -> None:
    plain = b"abcdefgh" * 50_000
    stream = cramjam.zstd.Compressor()  # a stream does not declare its length
    stream.compress(plain)
    data = bytes(stream.finish())
    assert zstandard.get_frame_parameters(data).content_size in (0, zstandard.CONTENTSIZE_UNKNOWN)
    assert bytes(decompress(Codec.ZSTD, data)) == plain
    assert code_of(lambda: decompress(Codec.ZSTD, data, len(plain) - 1)) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("declared", [0, 1, 10**9, 2**62])
def test_a_content_size_of_zstd_is_not_believed(declared: int) -> None:
    """A single segment with eight bytes of content size, then one raw block of five bytes."""
    frame = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", declared) + b"\x29\x00\x00" + b"hello"
    peak = peak_of(lambda: code_of(lambda: decompress(Codec.ZSTD, frame, 1_000_000)))
    assert peak < 10_000_000


def test_a_window_of_zstd_that_is_larger_than_memory() -> None:
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\xf8" + b"\x29\x00\x00" + b"hello"  # two terabytes
    assert code_of(lambda: decompress(Codec.ZSTD, frame, 1_000_000)) is ErrorCode.CORRUPT_MESSAGE


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def test_snappy_bombs() -> None:
    """Each block is within the limit, all together exceed it; and one block only claims to be large."""
    block = bytes(cramjam.snappy.compress_raw(bytes(400_000)))
    assert code_of(lambda: decompress(Codec.SNAPPY, xerial(block, block, block), 1_000_000)) is (
        ErrorCode.MESSAGE_TOO_LARGE
    )
    assert len(decompress(Codec.SNAPPY, xerial(block, block), 1_000_000)) == 800_000
    lie = b"\xff\xff\xff\xff\x0f" + block[3:]
    for data in (lie, xerial(lie)):
        assert peak_of(lambda data=data: code_of(lambda: decompress(Codec.SNAPPY, data, 1_000_000))) < 100_000
        assert code_of(lambda data=data: decompress(Codec.SNAPPY, data, 1_000_000)) is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1, 100])
def test_xerial_blocks_that_lie_about_their_length(length: int) -> None:
    data = XERIAL_HEADER + struct.pack(">i", length) + b"\x01\x00a"
    assert code_of(lambda: decompress(Codec.SNAPPY, data)) is ErrorCode.CORRUPT_MESSAGE


def test_xerial_header_cut_off() -> None:
    for cut in range(8, 16):
        assert code_of(lambda cut=cut: decompress(Codec.SNAPPY, XERIAL_HEADER[:cut])) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_costs_no_more_memory_than_its_bound(codec: Codec) -> None:
    bomb = compress(codec, bytes(50_000_000))
    peak = peak_of(lambda: code_of(lambda: decompress(codec, bomb, 1_000_000)))
    assert peak < 4_000_000 + 2 * len(bomb)


def test_unknown_codec() -> None:
    batch = pack_batch(read_header(build_batch(RECORDS))._replace(attributes=5), b"")
    assert code_of(lambda: list(iter_records(batch))) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_iter_batches_stops_at_a_torn_tail() -> None:
    one, two = build_batch(RECORDS), build_batch(RECORDS, base_offset=4)
    both = one + two
    for cut in range(len(both) + 1):
        found = list(iter_batches(both[:cut]))
        assert len(found) == (cut >= len(one)) + (cut == len(both))
        assert whole_batches_bytes(both[:cut]) == (len(both) if len(found) == 2 else len(one) if found else 0)


def test_malformed_batches_are_corrupt() -> None:
    good = build_batch(RECORDS)
    for length in (-1, 0, 13, 14, 48):
        bad = bytearray(good)
        struct.pack_into(">i", bad, 8, length)
        assert code_of(lambda bad=bad: list(iter_batches(bad))) is ErrorCode.CORRUPT_MESSAGE
        assert code_of(lambda bad=bad: read_header(bad)) is ErrorCode.CORRUPT_MESSAGE
    bad = bytearray(good)
    bad[16] = 3
    assert code_of(lambda: list(iter_batches(bad))) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_refused_by_name(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(1, b"k", b"v")
    builder.close()
    old = bytes(builder.buffer())
    assert code_of(lambda: list(iter_batches(old))) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert code_of(lambda: read_header(old)) is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_every_flipped_bit_breaks_the_checksum() -> None:
    good = build_batch(RECORDS)
    for position in range(21, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        assert not has_valid_crc(bad, 0, read_header(good))


def test_patches_in_place() -> None:
    log = bytearray(build_batch(RECORDS) * 2)
    second = len(log) // 2
    header = read_header(log, second)
    patch_offset_and_epoch(log, second, header, base_offset=1 << 40, leader_epoch=5)
    patched = read_header(log, second)
    assert (patched.base_offset, patched.leader_epoch, patched.last_offset) == (1 << 40, 5, (1 << 40) + 3)
    assert patched.crc == header.crc
    patch_max_timestamp(memoryview(log), second, patched, 777, log_append_time=True)
    patched = read_header(log, second)
    check_crc(log, second, patched)
    assert patched.is_log_append_time
    assert {record.timestamp for record in iter_records(memoryview(log)[second:])} == {777}
    assert log[:second] == build_batch(RECORDS)


def test_sequences_wrap_to_zero() -> None:
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 1
    assert read_header(build_batch(RECORDS)).last_sequence == -1


def test_gaps_and_empty_batches_of_a_cleaner() -> None:
    kept = [RECORDS[0]._replace(offset=10), RECORDS[2]._replace(offset=12)]
    batch = build_batch(kept, base_offset=9, last_offset=15)
    assert [record.offset for record in iter_records(batch)] == [10, 12]
    assert read_header(batch).last_offset == 15
    empty = build_batch([], base_offset=9, last_offset=15, codec=Codec.GZIP)
    assert len(empty) == 61
    assert read_header(empty).next_offset == 16


def mutated(header: BatchHeader, payload: bytes) -> bytes:
    return pack_batch(header, payload)


def test_strict_about_what_is_inside() -> None:
    header = read_header(build_batch([Record(b"k", b"v", 1)]))
    payload = build_batch([Record(b"k", b"v", 1)])[61:]
    cases = {
        "trailing bytes": (header, payload + b"\x00"),
        "fewer records than counted": (header._replace(count=2), payload),
        "more records than counted": (header, payload * 2),
        "negative count": (header._replace(count=-1), payload),
        "record shorter than its length": (header, bytes([payload[0] + 2]) + payload[1:] + b"\x00"),
        "key past the end": (header, payload[:4] + b"\x7e" + payload[5:]),
        "negative header count": (header, payload[:-1] + b"\x01"),
        "many headers": (header, payload[:-1] + b"\x7e"),
        "endless varint": (header, b"\xff" * 200),
    }
    for name, (bad_header, bad_payload) in cases.items():
        batch = mutated(bad_header, bad_payload)
        assert code_of(lambda batch=batch: list(iter_records(batch))) is ErrorCode.INVALID_RECORD, name


@pytest.mark.parametrize("type_", list(ControlType))
def test_control_batch(type_: ControlType) -> None:
    marker = EndTransactionMarker(type_, coordinator_epoch=12)
    batch = build_end_transaction_marker(marker, timestamp=5, producer_id=77, producer_epoch=2)
    assert len(batch) == 78
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == -1
    assert read_end_transaction_marker(batch) == marker
