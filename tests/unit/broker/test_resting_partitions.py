"""A follower's round costs what has changed, and the follower is judged as if it had fetched everything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker import reads, resting_partitions
from klamm.broker.fetch_sessions import FINAL_EPOCH
from klamm.broker.follower_session import FollowerSession
from klamm.broker.resting_partitions import VISITED_AFTER_S, RestingPartitions
from klamm.model.control import Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import FetchPartition, FetchResult, decode_follower_response, encode_follower_request
from klamm.wire.server_connection import RequestHeader

from .one_broker import INTERNAL, OneBroker, one

__all__ = ["one"]

SENDER = Sender(BrokerId(2), ControllerEpoch(5), BrokerEpoch(-1))
FOLLOWER = BrokerId(2)
NAMES = [TopicPartition("orders", n) for n in range(4)]
FIRST, LAST = NAMES[0], NAMES[-1]
RECORDS = 10


class FollowedLeader:
    """Broker 1 leads four partitions; broker 2 follows in a session."""

    def __init__(self, one: OneBroker, clock: Any, make_order: Any) -> None:
        self.one = one
        self.clock = clock
        self.make_order = make_order
        self.visited: list[TopicPartition] = []
        self.session = FollowerSession()
        self.wanted = {name: FetchPartition(name, RECORDS, 100, 0, 0) for name in NAMES}
        recorded = one.replicas.follower_fetched

        def fetched(name: TopicPartition, *told: Any) -> None:
            self.visited.append(name)
            recorded(name, *told)

        one.replicas.follower_fetched = fetched  # type: ignore[method-assign]

    async def lead(self, *names: TopicPartition, epoch: int = 0, isr: tuple[int, ...] = (1, 2)) -> None:
        orders = [self.make_order(epoch=epoch, isr=isr, replicas=(1, 2), partition=name) for name in names]
        await self.one.replicas.leader_and_isr(SENDER, orders)

    async def fetch(self, max_wait_ms: int = 0) -> list[FetchResult]:
        """One round: what the leader names."""
        self.visited.clear()
        asked = self.session.next(list(self.wanted.values()))
        body = encode_follower_request(
            replica_id=FOLLOWER,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1_000,
            partitions=asked.partitions,
            forgotten=asked.forgotten,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
        )
        header = RequestHeader(ApiKey.FETCH, 11, 1, "follower")
        answer = await self.one.handle(INTERNAL, header, memoryview(b"".join(body)))
        assert answer is not None
        error, session_id, results = decode_follower_response(memoryview(b"".join(answer)))
        assert error is ErrorCode.NONE
        self.session.answered(session_id, asked)
        for result in results:
            wanted = self.wanted[result.partition]
            self.wanted[result.partition] = wanted._replace(fetch_offset=wanted.fetch_offset + len(result.records))
        return results

    async def settle(self) -> None:
        """Until everything rests."""
        for _ in range(4):
            await self.fetch()
        assert self.visited == []

    async def start_waiting(self) -> asyncio.Task[list[FetchResult]]:
        waiting = asyncio.create_task(self.fetch(max_wait_ms=60_000))
        while not len(self.one.replicas.waiting_fetches):
            await asyncio.sleep(0)
        return waiting

    def append(self, name: TopicPartition) -> None:
        self.one.logs.kept[name].fill(0)
        self.one.replicas.after_append(self.one.replicas.partitions[name])

    def move_high_watermark(self, name: TopicPartition, offset: int) -> None:
        self.one.logs.kept[name].high_watermark = offset
        self.one.replicas.moved(name)

    def shrink(self, name: TopicPartition) -> tuple[BrokerId, ...] | None:
        return self.one.replicas.partitions[name].proposed_shrink()

    @property
    def max_lag(self) -> float:
        return self.one.replicas.config.replica_lag_time_max_ms / 1000


@pytest.fixture
async def leader(one: OneBroker, clock: Any, make_order: Any) -> FollowedLeader:
    await one.told(partitions=len(NAMES))
    leader = FollowedLeader(one, clock, make_order)
    await leader.lead(*NAMES)
    for name in NAMES:
        one.logs.kept[name].fill(*[0] * RECORDS)
    return leader


async def test_what_does_not_change_is_not_visited(leader: FollowedLeader) -> None:
    for what in ("the full fetch", "the high watermark is told", "nothing is left to tell"):
        await leader.fetch()
        assert leader.visited == NAMES, what
    await leader.fetch()
    assert leader.visited == []
    leader.append(LAST)
    assert [(r.partition, len(r.records)) for r in await leader.fetch()] == [(LAST, 1)]
    assert leader.visited == [LAST]
    for what in ("it tells that it has the record", "the high watermark is told", "nothing is left to tell"):
        await leader.fetch()
        assert leader.visited == [LAST], what
    await leader.fetch()
    assert leader.visited == []


async def test_an_append_to_a_resting_partition_ends_the_wait(leader: FollowedLeader) -> None:
    await leader.settle()
    waiting = await leader.start_waiting()
    leader.append(FIRST)
    leader.append(LAST)
    results = await asyncio.wait_for(waiting, 5)
    assert [(r.partition, len(r.records)) for r in results] == [(FIRST, 1), (LAST, 1)]


async def test_a_high_watermark_does_not_end_the_wait_and_is_told(leader: FollowedLeader) -> None:
    """KAFKA-9952."""
    await leader.settle()
    waiting = await leader.start_waiting()
    leader.move_high_watermark(FIRST, RECORDS + 7)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    leader.append(LAST)
    results = await asyncio.wait_for(waiting, 5)
    assert [(r.partition, r.high_watermark) for r in results if r.partition == FIRST] == [(FIRST, RECORDS + 7)]
    assert [r.partition for r in results if len(r.records)] == [LAST]


async def test_a_partition_that_woke_without_ending_the_wait_may_end_it_later(leader: FollowedLeader) -> None:
    await leader.settle()
    waiting = await leader.start_waiting()
    for _ in range(5):
        await asyncio.sleep(0)
    leader.move_high_watermark(FIRST, RECORDS - 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    leader.append(FIRST)
    async with asyncio.timeout(10):
        assert [bytes(result.records) for result in await waiting if result.partition == FIRST] == [b"\0"]


async def test_a_partition_that_woke_before_the_wait_is_noticed_by_it(leader: FollowedLeader) -> None:
    await leader.settle()
    replicas = leader.one.replicas
    resting = RestingPartitions(replicas, FOLLOWER)
    entry = leader.wanted[FIRST]
    assert resting.rest(entry, RECORDS, 0)
    resting.begin_round()
    leader.append(FIRST)
    told: list[FetchPartition] = []
    resting.listen(told.append)
    assert told == [entry]
    resting.stop_listening(told.append)
    assert resting.begin_round() == [FIRST]
    assert resting.begin_round() == []


async def test_a_resting_follower_is_in_sync_until_its_last_round(
    leader: FollowedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting_partitions, "VISITED_PER_ROUND", 0)
    await leader.settle()
    for _ in range(10):  # it asks again and again, for much longer than the limit
        leader.clock.advance(leader.max_lag / 2)
        await leader.fetch()
    leader.append(FIRST)
    assert leader.shrink(FIRST) is None, "it had everything a moment ago"
    leader.clock.advance(leader.max_lag * 0.9)
    assert leader.shrink(FIRST) is None
    leader.clock.advance(leader.max_lag * 0.2)
    assert leader.shrink(FIRST) == (BrokerId(1),)


async def test_a_follower_that_went_silent_while_it_rested_is_not_credited(leader: FollowedLeader) -> None:
    await leader.settle()
    leader.clock.advance(leader.max_lag * 2)
    assert leader.shrink(FIRST) is None, "it has everything"
    leader.append(FIRST)
    assert leader.shrink(FIRST) == (BrokerId(1),)


async def test_a_follower_outside_the_isr_does_not_rest(leader: FollowedLeader) -> None:
    await leader.lead(FIRST, epoch=1, isr=(1,))
    leader.one.metadata.is_alive = lambda _: False  # so it does not join
    leader.wanted[FIRST] = leader.wanted[FIRST]._replace(current_leader_epoch=1)
    for _ in range(4):
        await leader.fetch()
    assert leader.visited == [FIRST]


async def test_a_new_epoch_is_told(leader: FollowedLeader) -> None:
    await leader.settle()
    waiting = await leader.start_waiting()
    await leader.lead(FIRST, epoch=1)
    results = await asyncio.wait_for(waiting, 5)
    assert [(r.partition, r.error) for r in results] == [(FIRST, ErrorCode.FENCED_LEADER_EPOCH)]
    assert leader.shrink(FIRST) is None


async def test_changes_that_are_not_reported_are_seen_by_a_visit(leader: FollowedLeader) -> None:
    await leader.settle()
    leader.one.logs.kept[FIRST].log_start_offset = 3
    assert await leader.fetch() == []
    leader.clock.advance(VISITED_AFTER_S)
    assert [(r.partition, r.log_start_offset) for r in await leader.fetch()] == [(FIRST, 3)]


async def test_an_entry_that_the_follower_changes_or_drops(leader: FollowedLeader) -> None:
    await leader.settle()
    leader.wanted[FIRST] = leader.wanted[FIRST]._replace(log_start_offset=2)
    del leader.wanted[LAST]
    await leader.fetch()
    assert leader.visited == [FIRST]
    assert leader.one.replicas.partitions[FIRST].followers[FOLLOWER].log_start_offset == 2
    leader.append(LAST)
    assert await leader.fetch() == []


async def test_a_session_that_ends_leaves_nothing_behind(leader: FollowedLeader) -> None:
    await leader.settle()
    assert len(leader.one.replicas.waiting_fetches.by_partition) == len(NAMES)
    leader.wanted.clear()
    await leader.fetch()
    assert leader.one.replicas.waiting_fetches.by_partition == {}


async def test_a_partition_that_the_follower_drops_does_not_rest_any_more(leader: FollowedLeader) -> None:
    await leader.settle()
    del leader.wanted[FIRST]
    await leader.fetch()
    assert sorted(leader.one.replicas.waiting_fetches.by_partition) == NAMES[1:]


async def test_a_session_that_the_follower_closes_leaves_nothing_behind(leader: FollowedLeader) -> None:
    """Else the follower would be credited with rounds that it no longer makes."""
    await leader.settle()
    asked = leader.session.next(list(leader.wanted.values()))
    body = encode_follower_request(
        replica_id=FOLLOWER,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1_000,
        partitions=(),
        forgotten=(),
        session_id=asked.session_id,
        session_epoch=FINAL_EPOCH,
    )
    await leader.one.handle(INTERNAL, RequestHeader(ApiKey.FETCH, 11, 1, "follower"), memoryview(b"".join(body)))
    assert leader.one.replicas.waiting_fetches.by_partition == {}


@pytest.mark.parametrize("turn", range(8))
async def test_a_partition_ends_the_wait_in_whichever_turn_it_wakes(
    leader: FollowedLeader, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read in slices, and other tasks run in between."""
    monkeypatch.setattr(reads, "ENTRIES_PER_SLICE", 1)
    await leader.settle()
    for name in NAMES[:3]:
        leader.wanted[name] = leader.wanted[name]._replace(max_bytes=99)  # so that it does not rest
    waiting = asyncio.create_task(leader.fetch(max_wait_ms=60_000))
    for _ in range(turn):
        await asyncio.sleep(0)
    leader.append(LAST)
    async with asyncio.timeout(10):
        results = await waiting
    assert [bytes(result.records) for result in results if result.partition == LAST] == [b"\0"]


@pytest.mark.parametrize(
    "change", ["nothing", "another end", "another fetch offset", "a failed log", "another epoch", "not in the ISR"]
)
async def test_what_may_rest(leader: FollowedLeader, change: str) -> None:
    await leader.settle()
    resting = RestingPartitions(leader.one.replicas, FOLLOWER)
    partition, log, entry = leader.one.replicas.partitions[FIRST], leader.one.logs.kept[FIRST], leader.wanted[FIRST]
    if change == "another end":
        log.fill(0)
    elif change == "another fetch offset":
        entry = entry._replace(fetch_offset=RECORDS - 1)
    elif change == "a failed log":
        log.failed = True
    elif change == "another epoch":
        entry = entry._replace(current_leader_epoch=7)
    elif change == "not in the ISR":
        partition.isr = (BrokerId(1),)
    assert resting.rest(entry, RECORDS, 0) is (change == "nothing")
    assert (FIRST in resting) is (change == "nothing")


async def test_a_later_request_of_the_session_keeps_listening(leader: FollowedLeader) -> None:
    """The former request ends after the next one has begun."""
    await leader.settle()
    resting = RestingPartitions(leader.one.replicas, FOLLOWER)
    former: list[FetchPartition] = []
    present: list[FetchPartition] = []
    resting.listen(former.append)
    resting.listen(present.append)
    resting.stop_listening(former.append)
    assert resting.rest(leader.wanted[FIRST], RECORDS, 0)
    leader.append(FIRST)
    assert (former, [entry.partition for entry in present]) == ([], [FIRST])
    resting.stop_listening(present.append)
    assert resting.rest(leader.wanted[LAST], RECORDS, 0)
    leader.append(LAST)
    assert len(present) == 1


async def test_a_closed_session_is_told_nothing(leader: FollowedLeader) -> None:
    await leader.settle()
    resting = RestingPartitions(leader.one.replicas, FOLLOWER)
    told: list[FetchPartition] = []
    resting.listen(told.append)
    assert resting.rest(leader.wanted[FIRST], RECORDS, 0)
    resting.close()
    leader.append(FIRST)
    assert (told, len(resting)) == ([], 0)
