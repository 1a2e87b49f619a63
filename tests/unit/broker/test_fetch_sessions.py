"""Fetch sessions: the cache of a broker, the follower's side, and both together through the handler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from klamm.broker.fetch_sessions import (
    CONSUMED_MAX,
    EPOCH_MAX,
    IDLE_SECONDS,
    PARTITIONS_PER_SLOT,
    FetchSessions,
    SessionAnswer,
)
from klamm.broker.follower_session import FollowerSession
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import (
    ENTRIES_PER_SLICE,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_follower_response,
)
from klamm.wire.fetch import encode_follower_request as encode
from klamm.wire.server_connection import RequestHeader

from .one_broker import CLIENT, INTERNAL, TP, OneBroker, lead, one

__all__ = ["one"]
A, B, C = (TopicPartition("t", number) for number in range(3))
CONSUMER, FOLLOWER = -1, 2


def request(
    session_id: int = 0,
    epoch: int = 0,
    *names: TopicPartition,
    forgotten: Sequence[TopicPartition] = (),
    replica: int = CONSUMER,
    offset: int = 0,
) -> FetchRequest:
    entries = [FetchPartition(name, offset, 100) for name in names]
    return FetchRequest(replica, 0, 0, 100, False, session_id, epoch, entries, list(forgotten), "")


def result(name: TopicPartition, high_watermark: int = 5, start: int = 0, **fields: Any) -> FetchResult:
    return FetchResult(name, fields.pop("error", ErrorCode.NONE), high_watermark, 5, start, None, **fields)


@pytest.fixture
def sessions(clock: Any) -> FetchSessions:
    return FetchSessions(2, clock, random.Random(1))


def opened(sessions: FetchSessions, *names: TopicPartition, replica: int = CONSUMER) -> int:
    asked = request(0, 0, *names, replica=replica)
    return sessions.open(asked).answer([result(name) for name in names]).session_id


def told(answer: SessionAnswer) -> list[TopicPartition]:
    return [result.partition for result in answer.results]


def test_a_session_reads_everything_and_tells_what_changed(sessions: FetchSessions) -> None:
    session = opened(sessions, A, B)
    assert session > 0
    context = sessions.open(request(session, 1, B, offset=7))
    assert [(entry.partition, entry.fetch_offset) for entry in context.partitions] == [(A, 0), (B, 7)]
    answer = context.answer([result(A), result(B, high_watermark=6)])
    assert (answer.session_id, told(answer), answer.error) == (session, [B], ErrorCode.NONE)
    for number, (changed, expected) in enumerate(
        [
            (result(A), []),
            (result(A, start=1), [A]),
            (result(A, start=1), []),
            (result(A, start=1, records=b"r"), [A]),
            (result(A, start=1, preferred_read_replica=3), [A]),
        ]
    ):
        answer = sessions.open(request(session, number + 2)).answer([changed, result(B, high_watermark=6)])
        assert told(answer) == expected, number


@pytest.mark.case("FRQ-05")
def test_a_partition_in_error_is_repeated_until_it_is_mended(sessions: FetchSessions) -> None:
    session = opened(sessions, A, B)
    failed = FetchResult(A, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for epoch in (1, 2, 3):
        assert told(sessions.open(request(session, epoch)).answer([failed, result(B)])) == [A]
    assert told(sessions.open(request(session, 4)).answer([result(A), result(B)])) == [A], "mended"
    assert told(sessions.open(request(session, 5)).answer([result(A), result(B)])) == []


def test_partitions_with_records_go_to_the_end(sessions: FetchSessions) -> None:
    session = opened(sessions, A, B, C)
    sessions.open(request(session, 1)).answer([result(A, records=b"r"), result(B, high_watermark=9), result(C)])
    assert [entry.partition for entry in sessions.open(request(session, 2)).partitions] == [B, C, A]


def test_partitions_come_and_go(sessions: FetchSessions) -> None:
    session = opened(sessions, A, B)
    context = sessions.open(request(session, 1, C, forgotten=[A]))
    assert [entry.partition for entry in context.partitions] == [B, C]
    assert told(context.answer([result(B), result(C)])) == [C], "what is new is answered"
    answer = sessions.open(request(session, 2, forgotten=[B, C])).answer([])
    assert (answer.session_id, len(sessions)) == (0, 0), "an empty session is closed"


@pytest.mark.parametrize(
    ("known", "epoch", "error"),
    [
        (False, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (True, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (True, EPOCH_MAX, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (True, -7, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_what_is_refused_as_a_whole(sessions: FetchSessions, known: bool, epoch: int, error: ErrorCode) -> None:
    session = opened(sessions, A)
    context = sessions.open(request(session if known else session - 1, epoch, B))
    assert list(context.partitions) == []
    assert context.answer([]) == context.throttled() == SessionAnswer(0, (), error)
    assert [entry.partition for entry in sessions.open(request(session, 1)).partitions] == [A], "untouched"


def test_two_requests_at_the_same_time(sessions: FetchSessions) -> None:
    session = opened(sessions, A)
    waiting, next_one = sessions.open(request(session, 1)), sessions.open(request(session, 2))
    assert waiting.answer([result(A)]) == SessionAnswer(session, (), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert next_one.answer([result(A, 9)]).error is ErrorCode.NONE


def test_full_fetches_close_their_session(sessions: FetchSessions) -> None:
    first = opened(sessions, A)
    again = sessions.open(request(first, 0, A)).answer([result(A)]).session_id
    assert again not in (0, first) and len(sessions) == 1
    final = sessions.open(request(again, -1, A)).answer([result(A)])
    assert (final.session_id, told(final), len(sessions)) == (0, [A], 0)
    assert sessions.open(request(0, 0, A)).throttled() == SessionAnswer(0), "a throttled fetch opens none"
    assert len(sessions) == 0


def test_a_throttled_session_goes_on(sessions: FetchSessions) -> None:
    session = opened(sessions, A)
    assert sessions.open(request(session, 1)).throttled() == SessionAnswer(session)
    assert sessions.open(request(session, 2)).answer([result(A)]).error is ErrorCode.NONE


def test_the_epoch_after_the_last_one_is_1(sessions: FetchSessions) -> None:
    session = opened(sessions, A)
    sessions._sessions[session].epoch = EPOCH_MAX
    assert sessions.open(request(session, EPOCH_MAX)).answer([]).error is ErrorCode.NONE
    assert sessions.open(request(session, 1)).answer([]).error is ErrorCode.NONE


def test_no_slots_no_sessions(clock: Any) -> None:
    none = FetchSessions(0, clock, random.Random(1))
    assert opened(none, A) == opened(none, A, replica=FOLLOWER) == 0


def test_who_gives_way_when_the_cache_is_full(sessions: FetchSessions, clock: Any) -> None:
    small, large = opened(sessions, A), opened(sessions, A, B)
    assert opened(sessions, A, B, C) == 0, "no session is old or idle"
    follower = opened(sessions, A, replica=FOLLOWER)
    assert follower and set(sessions._sessions) == {large, follower}, "the smallest of a consumer"
    clock.advance(IDLE_SECONDS + 1)
    for session in (large, follower):
        sessions.open(request(session, 1)).answer([])
    assert opened(sessions, A, B) == 0, "old, but not smaller"
    wide = opened(sessions, A, B, C)
    assert wide and set(sessions._sessions) == {follower, wide}
    clock.advance(IDLE_SECONDS + 1)
    sessions.open(request(follower, 2)).answer([])
    assert opened(sessions, A) and wide not in sessions._sessions, "idle"
    assert small not in sessions._sessions
    assert sessions.evictions == 3


def test_consumers_cannot_fill_the_memory(clock: Any) -> None:
    sessions = FetchSessions(2, clock, random.Random(1))
    many = [TopicPartition("t", number) for number in range(2 * PARTITIONS_PER_SLOT)]
    assert opened(sessions, *many) != 0
    assert opened(sessions, A) == 0
    assert opened(sessions, *many, replica=FOLLOWER) != 0
    assert sessions.partition_count == 4 * PARTITIONS_PER_SLOT


def many(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in range(count)]


def test_a_consumer_with_very_many_partitions_has_no_session(clock: Any) -> None:
    sessions = FetchSessions(1_000, clock, random.Random(1))
    assert opened(sessions, *many(CONSUMED_MAX + 1)) == 0
    session = opened(sessions, *many(CONSUMED_MAX))
    assert session > 0
    grown = sessions.open(request(session, 1, TopicPartition("u", 0)))
    assert grown.answer([]).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0, "and it holds no memory"
    assert opened(sessions, *many(CONSUMED_MAX + 1), replica=FOLLOWER) > 0


def test_a_session_cannot_forget_more_than_it_has(sessions: FetchSessions) -> None:
    session = opened(sessions, A)
    assert sessions.open(request(session, 1, forgotten=[A, B])).answer([]).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_wide_sessions_are_opened_and_answered_in_slices(clock: Any) -> None:
    sessions = FetchSessions(1_000, clock, random.Random(1))
    names = many(2 * ENTRIES_PER_SLICE)
    results = [result(name) for name in names]
    steps = list(sessions.open(request(0, 0, *names)).answering(results))
    (session,) = sessions._sessions
    assert len(steps) >= 2
    assert len(list(sessions.opening(request(session, 1, forgotten=names)))) == 1
    assert len(sessions) == 0, "nothing is left of it"


def test_an_answer_in_slices_does_not_outlive_its_session(clock: Any) -> None:
    """Otherwise no answer would carry the news that the first slice settled."""
    sessions = FetchSessions(1_000, clock, random.Random(1))
    names = many(ENTRIES_PER_SLICE + 1)
    session = opened(sessions, *names)
    answering = sessions.open(request(session, 1)).answering([result(name, high_watermark=9) for name in names])
    next(answering)
    sessions.open(request(session, 2))
    with pytest.raises(StopIteration) as ended:
        next(answering)
    assert ended.value.value.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert len(sessions) == 0


# --- the follower's side ---


def wanted(**offsets: int) -> list[FetchPartition]:
    return [FetchPartition(TopicPartition(topic, 0), offset, 100) for topic, offset in offsets.items()]


def test_a_follower_names_what_changed() -> None:
    session = FollowerSession()
    first = session.next(wanted(a=1, b=1))
    assert (first.session_id, first.session_epoch, len(first.partitions)) == (0, 0, 2)
    session.answered(9, first)
    second = session.next(wanted(b=1, a=2, c=0))
    assert (second.session_id, second.session_epoch, list(second.forgotten)) == (9, 1, [])
    assert [entry.partition.topic for entry in second.partitions] == ["a", "c"]
    session.answered(9, second)
    third = session.next(wanted(a=2))
    assert (third.session_epoch, list(third.partitions)) == (2, [])
    assert [name.topic for name in third.forgotten] == ["b", "c"]


def test_without_an_answer_the_next_fetch_is_a_full_one() -> None:
    session = FollowerSession()
    session.answered(9, session.next(wanted(a=1)))
    session.next(wanted(a=1))  # cancelled, failed or refused
    again = session.next(wanted(a=1))
    assert (again.session_id, again.session_epoch, len(again.partitions)) == (0, 0, 1)
    session.answered(0, again)
    assert session.next(wanted(a=1)).session_epoch == 0, "the leader opens none"


# --- through the handler ---


async def fetch(one: OneBroker, session_id: int, epoch: int, *entries: FetchPartition, replica: int = -1) -> Any:
    body = b"".join(
        encode(
            replica_id=replica,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1000,
            partitions=entries,
            session_id=session_id,
            session_epoch=epoch,
        )
    )
    context = INTERNAL if replica >= 0 else CLIENT
    answer = await one.handle(context, RequestHeader(ApiKey.FETCH, 11, 1, "test"), memoryview(body))
    assert answer is not None
    return decode_follower_response(memoryview(b"".join(answer)))


@pytest.mark.parametrize("replica", [CONSUMER, FOLLOWER])
async def test_fetch_in_a_session(one: OneBroker, make_order: Any, replica: int) -> None:
    await one.told()
    log = await lead(one, make_order, isr=(1, 2))
    log.data += b"abc"
    log.high_watermark = 3
    error, session, results = await fetch(one, 0, 0, FetchPartition(TP, 3, 100), replica=replica)
    assert (error, [found.partition for found in results]) == (ErrorCode.NONE, [TP])
    assert session > 0
    assert await fetch(one, session, 1, replica=replica) == (ErrorCode.NONE, session, [])
    log.data += b"d"
    log.high_watermark = 4
    _, _, (found,) = await fetch(one, session, 2, replica=replica)
    assert bytes(found.records) == b"d"
    one.guard.denied = {(Operation.READ, "orders"), (Operation.CLUSTER_ACTION, "kafka-cluster")}
    _, _, (found,) = await fetch(one, session, 3, replica=replica)
    assert found.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    one.guard.denied = set()
    assert await fetch(one, session, 9, replica=replica) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, [])
    assert await fetch(one, 77, 1, replica=replica) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])


async def test_a_throttled_fetch_is_answered_without_data(one: OneBroker, make_order: Any) -> None:
    await one.told()
    log = await lead(one, make_order)
    log.data += b"abc"
    log.high_watermark = 3
    _, session, _ = await fetch(one, 0, 0, FetchPartition(TP, 0, 100))
    one.quotas.throttle_ms = 10
    assert await fetch(one, session, 1) == (ErrorCode.NONE, session, [])
    one.quotas.throttle_ms = 0
    _, _, (found,) = await fetch(one, session, 2)
    assert bytes(found.records) == b"abc"
