"""The rules of the ISR and of the high watermark, over plain values."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.broker import isr_notifications
from klamm.broker.isr import NEVER, UNKNOWN_OFFSET, Follower, committed_end, may_join, out_of_sync
from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.partition import Partition
from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import isr_change

from .conftest import TP

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
MAX_LAG = 10.0


# --- what a leader knows of a follower ---


@pytest.mark.parametrize(
    ("fetch_offset", "caught_up"),
    [
        (20, 7.0),  # the leader's end: now
        (19, 5.0),  # less than that, but the end at the previous fetch, or more: then
        (10, 5.0),
        (9, 1.0),  # not even that: as before
    ],
)
def test_when_a_follower_was_caught_up(fetch_offset: int, caught_up: float) -> None:
    follower = Follower(10, 0, last_caught_up=1.0, last_fetch=5.0, leader_end_at_last_fetch=10)
    follower.record_fetch(fetch_offset, 3, now=7.0, leader_end=20)
    assert follower == Follower(fetch_offset, 3, caught_up, last_fetch=7.0, leader_end_at_last_fetch=20)


def test_it_was_caught_up_at_the_latest_moment_of_all() -> None:
    follower = Follower(10, 0, last_caught_up=9.0, last_fetch=5.0, leader_end_at_last_fetch=10)
    follower.record_fetch(10, 0, now=7.0, leader_end=20)
    assert follower.last_caught_up == 9.0
    follower.had_everything_at(8.0)
    assert (follower.last_caught_up, follower.last_fetch) == (9.0, 8.0)
    follower.had_everything_at(12.0)
    assert (follower.last_caught_up, follower.last_fetch) == (12.0, 12.0)


@pytest.mark.parametrize(("in_isr", "caught_up"), [(True, 50.0), (False, NEVER)])
def test_a_new_leader_knows_nothing_of_its_followers(in_isr: bool, caught_up: float) -> None:
    follower = Follower(10, 4, last_caught_up=1.0, last_fetch=5.0, leader_end_at_last_fetch=10)
    follower.reset(in_isr=in_isr, now=50.0, leader_end=30)
    assert follower == Follower(UNKNOWN_OFFSET, UNKNOWN_OFFSET, caught_up, NEVER, 30)


@pytest.mark.parametrize(
    ("end", "last", "leaves"), [(20, 0.0, False), (19, 90.0, False), (19, 89.9, True), (21, 89.9, True)]
)
def test_who_leaves_the_isr(end: int, last: float, leaves: bool) -> None:
    followers = {TWO: Follower(end, last_caught_up=last), THREE: Follower(0, last_caught_up=NEVER)}
    gone = out_of_sync((ONE, TWO), followers, leader=ONE, leader_end=20, now=100.0, max_lag=MAX_LAG)
    assert gone == ((TWO,) if leaves else ())


@pytest.mark.parametrize(
    ("end", "high_watermark", "epoch_start", "joins"),
    [(5, 5, 5, True), (5, 6, 5, False), (5, 5, 6, False), (7, 6, 5, True), (UNKNOWN_OFFSET, 0, 0, False)],
)
def test_who_joins_the_isr(end: int, high_watermark: int, epoch_start: int, joins: bool) -> None:
    assert may_join(Follower(end), high_watermark=high_watermark, epoch_start=epoch_start) is joins


# --- the high watermark ---


@pytest.mark.parametrize(
    ("leader_end", "followers", "must_have", "expected"),
    [
        (9, {TWO: (5, NEVER)}, (ONE, TWO), 5),
        (9, {TWO: (5, NEVER), THREE: (4, NEVER)}, (ONE, TWO, THREE), 4),
        (9, {TWO: (5, NEVER), THREE: (4, NEVER)}, (ONE, TWO), 5),
        (9, {TWO: (5, NEVER), THREE: (4, 90.0)}, (ONE, TWO), 4),  # it may be in the ISR that a successor reads
        (9, {TWO: (5, NEVER), THREE: (4, 89.9)}, (ONE, TWO), 5),
        (9, {TWO: (UNKNOWN_OFFSET, NEVER)}, (ONE, TWO), UNKNOWN_OFFSET),
        (9, {}, (ONE, TWO), UNKNOWN_OFFSET),  # it is no replica any more, but has not left the ISR
        (9, {TWO: (12, 100.0)}, (ONE, TWO), 9),  # the leader's own flush counts, too
        (9, {TWO: (12, 100.0), THREE: (5, NEVER)}, (ONE, TWO, THREE), 5),
        (9, {TWO: (5, NEVER)}, (ONE,), 9),
    ],
)
def test_the_high_watermark_that_the_replicas_allow(
    leader_end: int,
    followers: dict[BrokerId, tuple[int, float]],
    must_have: tuple[BrokerId, ...],
    expected: int,
) -> None:
    known = {broker: Follower(end, last_caught_up=last) for broker, (end, last) in followers.items()}
    found = committed_end(leader_end, known, leader=ONE, must_have=must_have, now=100.0, max_lag=MAX_LAG)
    assert found == expected


def test_a_follower_does_not_raise_its_high_watermark_itself(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    log = make_log().fill(0, 0)
    partition.make_follower(make_order(leader=2), log)
    assert not partition.maybe_increment_high_watermark()
    assert log.high_watermark == 0
    partition.log = None
    assert not partition.maybe_increment_high_watermark()


# --- proposals ---


@pytest.mark.parametrize(
    ("change", "proposed"),
    [
        ("nothing", (ONE, TWO)),
        ("it is a member", None),
        ("it is no replica", None),
        ("it is dead", None),
        ("a write is under way", None),
        ("a later epoch is written", None),
        ("another leader", None),
    ],
)
def test_who_is_proposed(
    partition: Partition, make_log: Any, make_order: Any, change: str, proposed: tuple[BrokerId, ...] | None
) -> None:
    isr = (1, 2) if change == "it is a member" else (1,)
    replicas = (1, 3) if change == "it is no replica" else (1, 2)
    partition.make_leader(make_order(isr=isr, replicas=replicas), make_log())
    if TWO in partition.followers:
        partition.record_fetch(TWO, 0, 0)
    if change == "a write is under way":
        partition.pending_isr = (ONE, THREE)
    elif change == "a later epoch is written":
        partition.lose_isr_write()
    elif change == "another leader":
        partition.leader = THREE
    assert partition.proposed_expansion(TWO, lambda broker: change != "it is dead") == proposed


# --- notifications ---


async def test_the_timer_announces_what_is_due(zk: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr_notifications, "CHECK_EVERY", 0)
    notifications = IsrNotifications(zk, clock)
    timer = asyncio.create_task(notifications.run())
    notifications.record(TP)
    for _ in range(20):
        await asyncio.sleep(0)
    assert zk.tree.children(isr_change.PARENT) == []
    clock.advance(6)
    for _ in range(20):
        await asyncio.sleep(0)
    timer.cancel()
    await asyncio.gather(timer, return_exceptions=True)
    assert len(zk.tree.children(isr_change.PARENT)) == 1
