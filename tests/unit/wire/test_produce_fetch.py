"""Our codecs of Produce and Fetch equal kafka-python's in every version; torn and lying bytes are refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Generator
from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire import fetch, produce
from klamm.wire.apis import ApiKey
from klamm.wire.compression import Codec
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from klamm.wire.records import Record, build_batch
from klamm.wire.slices import finish

PRODUCE = range(3, 9)
FETCH = range(12)


def produce_request(version: int, rng: random.Random) -> Any:
    cls = request_class(ApiKey.PRODUCE)
    topic, partition = cls.TopicProduceData, cls.TopicProduceData.PartitionProduceData
    return cls(
        transactional_id=rng.choice([None, "tx"]),
        acks=rng.choice([-1, 0, 1]),
        timeout_ms=1500,
        topic_data=[
            topic(
                name=f"topic-{t}",
                partition_data=[
                    partition(index=p, records=rng.choice([None, rng.randbytes(30)])) for p in range(rng.randrange(3))
                ],
            )
            for t in range(3)
        ],
    )


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_request(version: int) -> None:
    rng = random.Random(version)
    for _ in range(20):
        theirs = produce_request(version, rng)
        ours = produce.decode_request(version, memoryview(encode_request(theirs, version)))
        assert (ours.transactional_id, ours.acks, ours.timeout_ms) == (theirs.transactional_id, theirs.acks, 1500)
        assert [(tp, bytes(records)) for tp, records in ours.entries] == [
            (TopicPartition(t.name, p.index), p.records or b"") for t in theirs.topic_data for p in t.partition_data
        ]


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_request_is_not_copied_and_not_read_past_its_end(version: int) -> None:
    entries = [(TopicPartition("a", 0), b"0123456789"), (TopicPartition("b", 3), b"x" * 20)]
    body = b"".join(produce.encode_request(version, acks=-1, timeout_ms=5, entries=entries))
    ours = produce.decode_request(version, memoryview(body))
    assert [(tp, bytes(records)) for tp, records in ours.entries] == entries
    assert all(records.obj is body for _, records in ours.entries)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            produce.decode_request(version, memoryview(body[:cut]))


@pytest.mark.parametrize("version", range(9))
def test_produce_response(version: int) -> None:
    results = [
        produce.ProduceResult(TopicPartition("a", 0), ErrorCode.NONE, 17, 99, 3),
        produce.ProduceResult(TopicPartition("a", 1), ErrorCode.INVALID_RECORD, message="no key"),
        produce.ProduceResult(TopicPartition("b", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]
    body = b"".join(produce.encode_response(version, results, throttle_ms=12))
    cls = response_class(ApiKey.PRODUCE)
    topic, partition = cls.TopicProduceResponse, cls.TopicProduceResponse.PartitionProduceResponse
    expected = cls(
        throttle_time_ms=12,
        responses=[
            topic(
                name=name,
                partition_responses=[
                    partition(
                        index=r.partition.partition,
                        error_code=int(r.error),
                        base_offset=r.base_offset,
                        log_append_time_ms=r.log_append_time,
                        log_start_offset=r.log_start_offset,
                        record_errors=[],
                        error_message=r.message,
                    )
                    for r in results
                    if r.partition.topic == name
                ],
            )
            for name in ("a", "b")
        ],
    )
    assert body == encode_response(expected, version)


def fetch_request(version: int) -> Any:
    cls = request_class(ApiKey.FETCH)
    topic, partition = cls.FetchTopic, cls.FetchTopic.FetchPartition
    return cls(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=[
            topic(
                topic=name,
                partitions=[
                    partition(
                        partition=p,
                        current_leader_epoch=4,
                        fetch_offset=1 << 40,
                        log_start_offset=2,
                        partition_max_bytes=1000 + p,
                    )
                    for p in range(3)
                ],
            )
            for name in ("a", "b")
        ],
        forgotten_topics_data=[cls.ForgottenTopic(topic="gone", partitions=[1, 2])],
        rack_id="rack",
    )


@pytest.mark.parametrize("version", FETCH)
def test_fetch_request(version: int) -> None:
    body = encode_request(fetch_request(version), version)
    ours = fetch.decode_request(version, memoryview(body))
    assert ours == fetch.FetchRequest(
        -1,
        500,
        1,
        1 << 20 if version >= 3 else (1 << 31) - 1,
        version >= 4,
        0,
        -1,
        [
            fetch.FetchPartition(
                TopicPartition(name, p), 1 << 40, 1000 + p, 4 if version >= 9 else -1, 2 if version >= 5 else -1
            )
            for name in ("a", "b")
            for p in range(3)
        ],
        [TopicPartition("gone", 1), TopicPartition("gone", 2)] if version >= 7 else [],
        "rack" if version >= 11 else "",
    )
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch.decode_request(version, memoryview(body[:cut]))


RESULTS = [
    fetch.FetchResult(TopicPartition("a", 0), ErrorCode.NONE, 10, 9, 1, [(5, 3), (6, 4)], b"records"),
    fetch.FetchResult(TopicPartition("a", 1), ErrorCode.OFFSET_OUT_OF_RANGE),
    fetch.FetchResult(TopicPartition("b", 0), ErrorCode.NONE, 1, 1, 0, [], memoryview(b"more")),
    fetch.FetchResult(TopicPartition("b", 1), ErrorCode.NONE, 1, 1, 0, None, b""),
]


@pytest.mark.parametrize("version", FETCH)
def test_fetch_response(version: int) -> None:
    chunks = fetch.encode_response(version, RESULTS, throttle_ms=3)
    assert any(chunk is RESULTS[0].records for chunk in chunks), "records are spliced, not copied"
    cls = response_class(ApiKey.FETCH)
    topic, partition = cls.FetchableTopicResponse, cls.FetchableTopicResponse.PartitionData
    expected = cls(
        throttle_time_ms=3,
        error_code=0,
        session_id=0,
        responses=[
            topic(
                topic=name,
                partitions=[
                    partition(
                        partition_index=r.partition.partition,
                        error_code=int(r.error),
                        high_watermark=r.high_watermark,
                        last_stable_offset=r.last_stable_offset,
                        log_start_offset=r.log_start_offset,
                        aborted_transactions=None
                        if r.aborted is None
                        else [partition.AbortedTransaction(producer_id=p, first_offset=o) for p, o in r.aborted],
                        preferred_read_replica=-1,
                        records=bytes(r.records),
                    )
                    for r in RESULTS
                    if r.partition.topic == name
                ],
            )
            for name in ("a", "b")
        ],
    )
    assert b"".join(chunks) == encode_response(expected, version)


def test_follower_reads_what_a_leader_sends() -> None:
    body = b"".join(fetch.encode_response(11, RESULTS, session_id=77))
    error, session_id, results = fetch.decode_follower_response(memoryview(body))
    assert (error, session_id) == (ErrorCode.NONE, 77)
    assert results == [r._replace(aborted=None) for r in RESULTS]
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            fetch.decode_follower_response(memoryview(body[:cut]))


def test_follower_request() -> None:
    partitions = [fetch.FetchPartition(TopicPartition("a", p), 100 + p, 1 << 20, 7, 50) for p in range(2)]
    body = b"".join(
        fetch.encode_follower_request(
            replica_id=3,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=10 << 20,
            partitions=partitions,
            forgotten=[TopicPartition("gone", 4), TopicPartition("left", 0), TopicPartition("gone", 5)],
            session_id=8,
            session_epoch=9,
        )
    )
    forgotten = [TopicPartition("gone", 4), TopicPartition("gone", 5), TopicPartition("left", 0)]
    assert fetch.decode_request(11, memoryview(body)) == fetch.FetchRequest(
        3, 500, 1, 10 << 20, False, 8, 9, partitions, forgotten, ""
    )
    cls = request_class(ApiKey.FETCH)
    topic = cls.FetchTopic
    expected = cls(
        replica_id=3,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        isolation_level=0,
        session_id=8,
        session_epoch=9,
        topics=[
            topic(
                topic="a",
                partitions=[
                    topic.FetchPartition(
                        partition=p.partition.partition,
                        current_leader_epoch=7,
                        fetch_offset=p.fetch_offset,
                        log_start_offset=50,
                        partition_max_bytes=1 << 20,
                    )
                    for p in partitions
                ],
            )
        ],
        forgotten_topics_data=[
            cls.ForgottenTopic(topic="gone", partitions=[4, 5]),
            cls.ForgottenTopic(topic="left", partitions=[0]),
        ],
        rack_id="",
    )
    assert body == encode_request(expected, 11)


def test_counts_and_lengths_that_lie() -> None:
    for body in (
        b"\xff\xff\xff\xff\x00\x00\x00\x01\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff" + bytes(8),
    ):
        with pytest.raises(ProtocolError):
            produce.decode_request(3, memoryview(body))


def test_an_error_code_that_we_do_not_know_is_still_an_error() -> None:
    """A newer broker may answer with unknown error codes; the follower must see a failed partition."""
    body = bytearray(b"".join(fetch.encode_response(11, RESULTS[1:2])))
    position = body.index(ErrorCode.OFFSET_OUT_OF_RANGE.to_bytes(2, "big"), 10 + 4 + 3 + 4 + 4)
    body[position : position + 2] = (100).to_bytes(2, "big")
    _, _, (result,) = fetch.decode_follower_response(memoryview(body))
    assert result.error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_decoded_by_kafka_python_too() -> None:
    body = b"".join(fetch.encode_response(11, RESULTS))
    assert decode_response(ApiKey.FETCH, 11, body).responses[0].partitions[0].records == b"records"


BATCH = build_batch([Record(b"k", b"v", 1)])
ZSTD = build_batch([Record(b"k", b"v", 1)], codec=Codec.ZSTD)


def with_magic(magic: int) -> bytes:
    return BATCH[:16] + bytes([magic]) + BATCH[17:]


@pytest.mark.parametrize(
    ("version", "records", "expected"),
    [
        (3, BATCH, None),
        (8, ZSTD, None),
        (3, BATCH + BATCH[:-1], None),  # a torn batch at the end is ignored
        (3, b"", ErrorCode.INVALID_RECORD),
        (3, BATCH[:-1], ErrorCode.INVALID_RECORD),
        (3, with_magic(0), ErrorCode.INVALID_RECORD),
        (8, with_magic(1), ErrorCode.INVALID_RECORD),
        (2, with_magic(1), None),  # the log refuses it with a reason
        (3, with_magic(3), ErrorCode.CORRUPT_MESSAGE),
        (3, BATCH[:8] + b"\x00\x00\x00\x0d" + BATCH[12:], ErrorCode.CORRUPT_MESSAGE),
        (6, ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, ZSTD, None),
        (8, BATCH + BATCH, ErrorCode.INVALID_RECORD),
    ],
)
def test_what_a_version_may_carry(version: int, records: bytes, expected: ErrorCode | None) -> None:
    refusal = produce.unfit(version, memoryview(records))
    assert (None if refusal is None else refusal.code) is expected


MIXED = [TopicPartition("a", 1), TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)]


def test_a_topic_is_answered_once_however_its_partitions_mix() -> None:
    produced = [produce.ProduceResult(name, ErrorCode.NONE) for name in MIXED]
    answer = decode_response(ApiKey.PRODUCE, 8, b"".join(produce.encode_response(8, produced)))
    assert [(t.name, [p.index for p in t.partition_responses]) for t in answer.responses] == [
        ("a", [1, 0]),
        ("b", [1, 0]),
    ]
    fetched = [fetch.FetchResult(name, ErrorCode.NONE, records=b"r") for name in MIXED]
    answer = decode_response(ApiKey.FETCH, 11, b"".join(fetch.encode_response(11, fetched)))
    assert [(t.topic, [p.partition_index for p in t.partitions]) for t in answer.responses] == [
        ("a", [1, 0]),
        ("b", [1, 0]),
    ]


def test_a_follower_asks_in_its_own_order() -> None:
    """The leader fills its answer in the order of the request, so grouping by topic would favour the first topic."""
    asked = [fetch.FetchPartition(name, 0, 1) for name in MIXED]
    body = fetch.encode_follower_request(replica_id=1, max_wait_ms=0, min_bytes=1, max_bytes=1, partitions=asked)
    request = decode_request(ApiKey.FETCH, 11, b"".join(body))
    assert [(t.topic, p.partition) for t in request.topics for p in t.partitions] == MIXED


def test_a_transactional_batch_is_found_wherever_it_is() -> None:
    plain = build_batch([Record(key=None, value=b"x", timestamp=1)])
    ours = build_batch(
        [Record(key=None, value=b"x", timestamp=1)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    found = [finish(produce.is_transactional(memoryview(sent))) for sent in (plain, ours, plain + ours, ours[:20], b"")]
    assert found == [False, True, True, False, False]
    assert not finish(produce.is_transactional(memoryview(bytes(100)))), "a size of 0 does not go round for ever"


def slices_of(work: Generator[None, None, Any]) -> int:
    """How often it lets other tasks run."""
    count = 0
    try:
        while True:
            next(work)
            count += 1
    except (StopIteration, ProtocolError):
        return count


MANY = 100_000
EMPTY_TOPIC = b"\x00\x01t" + bytes(4)


@pytest.mark.parametrize(
    "work",
    [
        produce.decode_in_slices(0, memoryview(struct.pack(">hii", 1, 1, MANY) + EMPTY_TOPIC * MANY)),
        produce.is_transactional(memoryview((bytes(8) + struct.pack(">i", 10) + bytes(10)) * MANY)),
        fetch.decode_in_slices(4, memoryview(struct.pack(">iiii?i", -1, 1, 1, 1, False, MANY) + EMPTY_TOPIC * MANY)),
        fetch.decode_in_slices(
            7, memoryview(struct.pack(">iiii?iiii", -1, 1, 1, 1, False, 0, -1, 0, MANY) + EMPTY_TOPIC * MANY)
        ),
        fetch.decode_in_slices(
            7,
            memoryview(
                struct.pack(">iiii?iiii", -1, 1, 1, 1, False, 0, -1, 0, 1)
                + b"\x00\x01t"
                + struct.pack(">i", MANY)
                + bytes(4 * MANY)
            ),
        ),
    ],
    ids=["produce topics", "batches", "fetch topics", "forgotten topics", "forgotten partitions"],
)
def test_whatever_fills_a_frame_is_decoded_in_slices(work: Generator[None, None, Any]) -> None:
    assert slices_of(work) >= MANY // 2_000 - 1


def test_a_fetch_forgets_no_more_partitions_than_it_may_name() -> None:
    count = fetch.ENTRIES_MAX + 1
    head = struct.pack(">iiii?iiii", -1, 1, 1, 1, False, 0, -1, 0, 1) + b"\x00\x01t" + struct.pack(">i", count)
    with pytest.raises(ProtocolError):
        finish(fetch.decode_in_slices(7, memoryview(head + bytes(4 * count))))


def test_an_answer_to_a_wide_produce_is_encoded_in_slices() -> None:
    results = [produce.ProduceResult(TopicPartition("t", n), ErrorCode.NONE, n) for n in range(10_000)]
    assert slices_of(produce.encode_in_slices(8, results)) == 5
