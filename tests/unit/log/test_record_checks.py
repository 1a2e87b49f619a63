"""What a leader refuses although the checksum is right, and how much it spends on finding out."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import Any

import pytest

from klamm.log.validation import BATCHES_MAX, AppendOrigin, InvalidRecords, is_costly
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch
from klamm.wire.batch import HEADER_BYTES, pack_batch, read_header
from klamm.wire.compression import Codec, compress
from klamm.wire.records import Record, build_batch, check_records, iter_records
from klamm.wire.varint import varint

from .conftest import Workbench, read_all

EPOCH = LeaderEpoch(0)
COMPACTED = TopicConfig(cleanup_policy=("compact",))
THREE = build_batch([Record(b"k", b"v%d" % n, 1000 + n) for n in range(3)])


def forged(payload: bytes, codec: Codec = Codec.NONE, **fields: int) -> bytes:
    """A batch of three records by its header, with this payload and a valid checksum."""
    header = read_header(THREE)
    return pack_batch(header._replace(attributes=int(codec), **fields), compress(codec, payload))


def record(delta: int, body: bytes = b"\x02k\x02v\x00", *, length: int | None = None) -> bytes:
    content = b"\x00" + varint(0) + varint(delta) + body
    return varint(len(content) if length is None else length) + content


GOOD = THREE[HEADER_BYTES:]
MALFORMED = {
    "random bytes": bytes(random.Random(1).randbytes(len(GOOD))),
    "cut off": GOOD[:-1],
    "bytes after the last record": GOOD + b"\x00",
    "fewer records than announced": record(0) + record(1),
    "more records than announced": record(0) + record(1) + record(2) + record(3),
    "a length that is too short": record(0) + record(1, length=4) + record(2),
    "a key that is longer than its record": record(0) + record(1, b"\x7e" + b"k\x02v\x00") + record(2),
    "a negative length": record(0) + record(1, b"\x03k\x02v\x00") + record(2),
    "a header without a key": record(0) + record(1, b"\x02k\x02v\x02\x01\x01") + record(2),
    "deltas that do not rise": record(0) + record(0) + record(2),
    "deltas with a gap": record(0) + record(1) + record(3),
    "a timestamp without end": record(0)[:2] + b"\xff" * 20 + record(0)[2:],
    "nothing": b"",
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.GZIP])
@pytest.mark.parametrize("config", [TopicConfig(), COMPACTED, TopicConfig(compression_type="lz4")])
@pytest.mark.parametrize("name", MALFORMED)
def test_records_that_cannot_be_read_are_refused(
    bench: Workbench, name: str, codec: Codec, config: TopicConfig
) -> None:
    log = bench.open(config)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(forged(MALFORMED[name], codec), EPOCH)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0
    log.append_as_leader(THREE, EPOCH)
    assert read_all(log) == [0, 1, 2]


def test_the_answer_names_the_record(bench: Workbench) -> None:
    with pytest.raises(InvalidRecords) as caught:
        bench.open().append_as_leader(forged(MALFORMED["a negative length"]), EPOCH)
    ((index, reason),) = caught.value.record_errors
    assert (index, "record 1" in reason) == (1, True)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_what_does_not_decompress_is_corrupt(bench: Workbench, codec: Codec) -> None:
    header = read_header(THREE)._replace(attributes=int(codec))
    with pytest.raises(KafkaError) as caught:
        bench.open().append_as_leader(pack_batch(header, b"this is not compressed"), EPOCH)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("fields", [{"count": 2}, {"last_offset_delta": 5}, {"count": 4, "last_offset_delta": 3}])
def test_wrong_counts_are_refused(bench: Workbench, fields: dict[str, int]) -> None:
    with pytest.raises(KafkaError) as caught:
        bench.open().append_as_leader(forged(GOOD, **fields), EPOCH)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("config", [TopicConfig(), COMPACTED])
def test_a_bomb_is_refused_before_it_fills_the_memory(bench: Workbench, codec: Codec, config: TopicConfig) -> None:
    config = TopicConfig(cleanup_policy=config.cleanup_policy, max_message_bytes=100_000)
    log = bench.open(config)
    bomb = build_batch([Record(b"k", bytes(50 << 20), 1)], codec=codec)
    if len(bomb) > config.max_message_bytes:
        log.config = TopicConfig(cleanup_policy=config.cleanup_policy, max_message_bytes=len(bomb))
    limit = 16 * log.config.max_message_bytes
    if limit > 40 << 20:
        pytest.skip(f"{codec.name} does not compress zeros that well")
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(bomb, EPOCH)
        assert tracemalloc.get_traced_memory()[1] < 3 * limit
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("config", [COMPACTED, TopicConfig(compression_type="lz4"), TopicConfig()])
def test_many_records_in_a_few_bytes_are_refused_at_the_first_faults(bench: Workbench, config: TopicConfig) -> None:
    """Equal records compress a thousandfold, but the offsets of valid ones rise."""
    count = 100_000
    bomb = forged(record(0) * count, Codec.ZSTD, count=count, last_offset_delta=count - 1)
    assert len(bomb) < 300
    assert is_costly(bomb, config)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecords) as caught:
            bench.open(config).append_as_leader(bomb, EPOCH)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000, "its records are not kept"
    finally:
        tracemalloc.stop()
    assert len(caught.value.record_errors) <= 1_000


def test_an_append_has_a_limited_number_of_batches(bench: Workbench) -> None:
    log = bench.open()
    log.append_as_leader(THREE * BATCHES_MAX, EPOCH)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(THREE * (BATCHES_MAX + 1), EPOCH)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 3 * BATCHES_MAX


def test_the_quick_check_agrees_with_reading() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        batch = _mutated(rng)
        header = read_header(batch)
        try:
            readable = [r.offset for r in iter_records(batch)] == list(range(header.count))
        except KafkaError:
            readable = False
        try:
            check_records(batch, header)
            accepted = True
        except KafkaError:
            accepted = False
        assert accepted == readable, batch[:100].hex()


def _mutated(rng: random.Random) -> bytes:
    batch = build_batch(_alike(rng) if rng.random() < 0.5 else _different(rng))
    payload = bytearray(batch[HEADER_BYTES:])
    match rng.randrange(4):
        case 0:
            place = rng.randrange(len(payload))
            payload[place] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, payload[place] ^ 1])
        case 1:
            del payload[rng.randrange(len(payload)) :]
        case 2:
            payload += rng.randbytes(3)
    return pack_batch(read_header(batch), bytes(payload))


def _different(rng: random.Random) -> list[Record]:
    return [
        Record(
            rng.choice([None, b"", b"key"]),
            rng.choice([None, b"v" * rng.choice([0, 5, 63, 64, 65, 8191, 8192, 9000])]),
            1000 + rng.choice([0, -5, 10**9, 10**15]),
            (("h", b"x"),) if rng.random() < 0.2 else (),
        )
        for _ in range(rng.choice([1, 2, 3, 70]))
    ]


def _alike(rng: random.Random) -> list[Record]:
    """Small, so that a mutation is likely to hit a length, a timestamp or an offset."""
    key, value = rng.choice([None, b"key", b"k" * 70]), bytes(rng.choice([0, 3, 64]))
    pace = rng.choice([0, 1, 200])
    return [Record(key, value, 1000 + pace * n) for n in range(rng.choice([8, 20, 64, 65, 150, 300]))]


# --- off the loop ----------------------------------------------------------------------------------------------------

LARGE = build_batch([Record(b"key-%d" % n, b"v" * 100, 1000) for n in range(1000)])


@pytest.mark.parametrize(
    ("batch", "config", "expected"),
    [
        (THREE, COMPACTED, False),
        (LARGE, TopicConfig(), False),
        (LARGE, COMPACTED, True),
        (LARGE, TopicConfig(compression_type="zstd"), True),
        (LARGE, TopicConfig(message_timestamp_difference_max_ms=10), True),
        (build_batch([Record(None, bytes(200_000), 1)]), TopicConfig(), False),
        (build_batch([Record(None, b"", 1)] * 5_000), TopicConfig(), True),
        (build_batch([Record(None, b"", 1)] * 1_000), TopicConfig(), False),
        (build_batch([Record(b"k", b"", 1)] * 1_000), COMPACTED, True),
        (THREE * 400, TopicConfig(), True),
        (bytes(22) + b"\x04" + bytes(200_000), TopicConfig(), True),
        (bytes(2_000_000), TopicConfig(), True),
    ],
)
def test_what_is_costly(batch: bytes, config: TopicConfig, expected: bool) -> None:
    assert is_costly(batch, config) is expected


async def test_a_costly_batch_is_prepared_in_the_pool_and_appended_like_any_other(bench: Workbench) -> None:
    plain, costly = bench.open(COMPACTED), bench.open(COMPACTED, directory=bench.directory / "other")
    jobs: list[Any] = []
    run = bench.disk.run

    async def counted(job: Any) -> Any:
        jobs.append(job)
        return await run(job)

    bench.disk.run = counted  # type: ignore[method-assign]
    prepared = await costly.prepare(LARGE)
    assert prepared is not None
    assert len(jobs) == 1
    assert costly.append_as_leader(prepared, EPOCH) == plain.append_as_leader(LARGE, EPOCH)
    reads = [log.read(0, 1 << 20, upper_bound=1000, at_least_one=True) for log in (plain, costly)]
    assert reads[0] == reads[1]
    assert await costly.prepare(THREE) is None


async def test_a_costly_batch_that_is_refused(bench: Workbench) -> None:
    log = bench.open(COMPACTED)
    records = [Record(None if n == 7 else b"k", b"v" * 100, 1000) for n in range(1000)]
    with pytest.raises(InvalidRecords) as caught:
        await log.prepare(build_batch(records))
    assert [index for index, _ in caught.value.record_errors] == [7]


async def test_two_costly_batches_may_be_prepared_at_once(bench: Workbench) -> None:
    log = bench.open(COMPACTED)
    first, second = await asyncio.gather(log.prepare(LARGE), log.prepare(LARGE))
    assert first is not None
    assert second is not None
    log.append_as_leader(second, EPOCH, origin=AppendOrigin.CLIENT)
    log.append_as_leader(first, EPOCH)
    assert read_all(log) == list(range(2000))
