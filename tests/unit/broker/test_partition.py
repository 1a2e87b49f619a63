"""Roles, fencing, high watermark and ISR decisions of one partition."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.partition import Bound, Partition
from klamm.log.leader_epochs import EpochEndOffset
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId


def code_of(call: Any, *args: Any, **kwargs: Any) -> ErrorCode:
    try:
        call(*args, **kwargs)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


@pytest.mark.case("PAR-01")
def test_a_new_leader_caches_its_epoch_before_any_append(partition: Partition, make_log: Any, make_order: Any) -> None:
    log = make_log().fill(0, 0, 5, 5)
    assert partition.make_leader(make_order(epoch=8), log)
    assert partition.epoch_end(8, 8) == EpochEndOffset(8, 4)


@pytest.mark.case("PAR-03")
@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, 0), (5, 0), (4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_leader_fences_by_epoch(
    partition: Partition, make_log: Any, make_order: Any, epoch: int, expected: int
) -> None:
    partition.make_leader(make_order(epoch=5), make_log())
    assert code_of(partition.local_log, epoch) == expected
    assert code_of(partition.epoch_end, epoch, 0) == expected


@pytest.mark.case("PAR-04", "EPO-13")
@pytest.mark.parametrize(
    ("epoch", "on_follower", "leader_only"),
    [(-1, 0, 6), (5, 0, 6), (4, 74, 74), (6, 75, 75)],
)
def test_follower_fences_by_epoch_before_it_says_that_it_does_not_lead(
    partition: Partition, make_log: Any, make_order: Any, epoch: int, on_follower: int, leader_only: int
) -> None:
    partition.make_follower(make_order(leader=2, epoch=5), make_log())
    assert code_of(partition.local_log, epoch, leader_only=False) == on_follower
    assert code_of(partition.local_log, epoch) == leader_only
    assert code_of(partition.epoch_end, epoch, 0) == leader_only


@pytest.mark.case("PAR-09")
def test_checkpointed_high_watermark_survives_becoming_leader(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    log = make_log().fill(0, 0, 0, 0, 0, 0)
    log.update_high_watermark(4)
    partition.make_leader(make_order(epoch=1), log)
    assert not partition.maybe_increment_high_watermark()
    assert log.high_watermark == 4


@pytest.mark.case("PAR-06")
def test_bounds_of_readers(partition: Partition, make_log: Any, make_order: Any) -> None:
    log = make_log().fill(0, 0, 0)
    log.unstable = 0
    partition.make_leader(make_order(), log)
    assert [partition.bound(log, bound) for bound in Bound] == [3, 0, 0]
    log.update_high_watermark(1)
    assert [partition.bound(log, bound) for bound in Bound] == [3, 1, 0]


@pytest.mark.case("PAR-07")
def test_without_a_log_nothing_is_served(partition: Partition) -> None:
    assert code_of(partition.local_log, leader_only=False) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.case("PAR-08", "PAR-10")
def test_gauges(partition: Partition, make_log: Any, make_order: Any) -> None:
    assert not partition.is_at_min_isr
    partition.make_leader(make_order(isr=(1,)), make_log())
    assert partition.is_at_min_isr
    assert partition.is_under_replicated
    partition.make_leader(make_order(epoch=1), make_log())
    assert not partition.is_under_replicated


def test_min_isr_refuses_acks_all_before_the_append(partition: Partition, make_log: Any, make_order: Any) -> None:
    log = make_log(min_insync_replicas=2)
    partition.make_leader(make_order(isr=(1,)), log)
    assert code_of(partition.append_as_leader, b"r", acks=-1) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert log.log_end_offset == 0
    assert code_of(partition.append_as_leader, b"r", acks=1) is ErrorCode.NONE


def test_records_below_min_isr_are_readable_but_never_acknowledged_by_all(
    partition: Partition, make_log: Any, make_order: Any, clock: Any
) -> None:
    """acks=1 goes on with an ISR of one, and retention with it (ADR 0009)."""
    log = make_log(min_insync_replicas=2)
    partition.make_leader(make_order(isr=(1,)), log)
    clock.advance(60)
    partition.append_as_leader(b"r", acks=1)
    assert partition.maybe_increment_high_watermark()
    assert log.high_watermark == 1
    assert partition.acknowledged(1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize("acks", ["flushed", "acknowledged"])
@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("nothing", ErrorCode.NONE),
        ("a failed log", ErrorCode.KAFKA_STORAGE_ERROR),
        ("another leader", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("no log", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("a flush", None),
    ],
)
def test_the_outcome_of_a_produce(
    partition: Partition, make_log: Any, make_order: Any, acks: str, change: str, outcome: ErrorCode | None
) -> None:
    log = make_log()
    partition.make_leader(make_order(isr=(1,), replicas=(1,)), log)
    log.fill(0)
    partition.maybe_increment_high_watermark()
    if change == "a failed log":
        log.failed = True
    elif change == "another leader":
        partition.make_follower(make_order(leader=2, epoch=1), log)
    elif change == "no log":
        partition.log = None
    elif change == "a flush":
        log.waits_for_flush = True
    assert getattr(partition, acks)(1) is outcome


def test_acknowledged_after_the_isr_shrank_below_the_minimum(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    log = make_log(min_insync_replicas=2)
    partition.make_leader(make_order(isr=(1, 2), replicas=(1, 2)), log)
    partition.append_as_leader(b"r", acks=-1)
    assert partition.acknowledged(1) is None
    partition.record_fetch(BrokerId(2), 1, 0)
    partition.maybe_increment_high_watermark()
    partition.settle_isr((BrokerId(1),), 1)
    assert partition.acknowledged(1) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.fixture
def leader_of_ten(partition: Partition, make_log: Any, make_order: Any) -> Partition:
    """Ten records, epoch 0, led by 1 with follower 2."""
    partition.make_leader(make_order(isr=(1, 2), replicas=(1, 2)), make_log())
    partition.append_as_leader(b"0123456789", acks=1)
    return partition


def alive(_: BrokerId) -> bool:
    return True


@pytest.mark.case("ISR-01")
def test_follower_that_stops_before_the_end_leaves_after_the_limit(leader_of_ten: Partition, clock: Any) -> None:
    leader_of_ten.record_fetch(BrokerId(2), 9, 0)
    assert leader_of_ten.proposed_shrink() is None
    clock.advance(0.15)
    assert leader_of_ten.proposed_shrink() == (1,)


@pytest.mark.case("ISR-02", "ISR-06")
def test_silent_follower_counts_as_caught_up_when_leadership_starts(leader_of_ten: Partition, clock: Any) -> None:
    assert leader_of_ten.proposed_shrink() is None
    clock.advance(0.15)
    assert leader_of_ten.proposed_shrink() == (1,)


@pytest.mark.case("ISR-03")
def test_slow_follower_leaves_and_returns_by_one_fetch_at_the_end(leader_of_ten: Partition, clock: Any) -> None:
    leader_of_ten.record_fetch(BrokerId(2), 2, 0)
    clock.advance(0.075)
    leader_of_ten.record_fetch(BrokerId(2), 8, 0)
    assert leader_of_ten.proposed_shrink() is None
    clock.advance(0.075)
    assert leader_of_ten.proposed_shrink() == (1,)
    leader_of_ten.record_fetch(BrokerId(2), 10, 0)
    assert leader_of_ten.proposed_shrink() is None


def test_idle_follower_at_the_end_stays(leader_of_ten: Partition, clock: Any) -> None:
    leader_of_ten.record_fetch(BrokerId(2), 10, 0)
    clock.advance(60)
    assert leader_of_ten.proposed_shrink() is None


@pytest.mark.case("ISR-07")
def test_last_caught_up_moves_only_with_a_fetch_at_the_end(leader_of_ten: Partition, clock: Any) -> None:
    follower = leader_of_ten.followers[BrokerId(2)]
    before = follower.last_caught_up
    clock.advance(1)
    leader_of_ten.record_fetch(BrokerId(2), 3, 0)
    assert (follower.log_end_offset, follower.last_caught_up) == (3, before)
    leader_of_ten.record_fetch(BrokerId(2), 10, 0)
    assert follower.last_caught_up == clock.monotonic()


def test_what_was_the_end_at_the_previous_fetch_counts_from_then(leader_of_ten: Partition, clock: Any) -> None:
    follower = leader_of_ten.followers[BrokerId(2)]
    clock.advance(1)
    first_fetch = clock.monotonic()
    leader_of_ten.record_fetch(BrokerId(2), 0, 0)
    leader_of_ten.append_as_leader(b"more", acks=1)
    clock.advance(1)
    leader_of_ten.record_fetch(BrokerId(2), 10, 0)
    assert follower.last_caught_up == first_fetch


@pytest.mark.case("ISR-04")
def test_expansion_needs_high_watermark_and_epoch_start(partition: Partition, make_log: Any, make_order: Any) -> None:
    log = make_log().fill(*[4] * 10)
    partition.make_leader(make_order(epoch=5, isr=(1,), replicas=(1, 2)), log)
    partition.record_fetch(BrokerId(2), 3, 0)
    assert partition.proposed_expansion(BrokerId(2), alive) is None
    partition.record_fetch(BrokerId(2), 10, 0)
    assert partition.proposed_expansion(BrokerId(2), alive) == (1, 2)
    assert partition.proposed_expansion(BrokerId(2), lambda broker: False) is None
    assert partition.proposed_expansion(BrokerId(9), alive) is None


@pytest.mark.case("ISR-05")
def test_high_watermark_jumps_once_the_shrink_is_in_force(leader_of_ten: Partition, clock: Any) -> None:
    clock.advance(0.2)
    proposed = leader_of_ten.proposed_shrink()
    assert proposed == (1,)
    leader_of_ten.pending_isr = proposed
    assert not leader_of_ten.maybe_increment_high_watermark(), "the outcome is unknown, so the old member counts"
    assert leader_of_ten.proposed_shrink() is None, "one write at a time"
    leader_of_ten.settle_isr(proposed, 1)
    assert leader_of_ten.maybe_increment_high_watermark()
    assert leader_of_ten.log is not None
    assert leader_of_ten.log.high_watermark == 10
    assert leader_of_ten.leader_epoch == 0


def test_high_watermark_waits_for_a_member_whose_admission_is_pending(
    partition: Partition, make_log: Any, make_order: Any, clock: Any
) -> None:
    log = make_log()
    partition.make_leader(make_order(isr=(1,), replicas=(1, 2)), log)
    partition.record_fetch(BrokerId(2), 0, 0)
    partition.pending_isr = partition.proposed_expansion(BrokerId(2), alive)
    assert partition.pending_isr == (1, 2)
    partition.append_as_leader(b"abc", acks=1)
    clock.advance(60)
    assert not partition.maybe_increment_high_watermark()
    partition.lose_isr_write()
    assert not partition.maybe_increment_high_watermark(), "the superseded write may have been in force"


def test_high_watermark_waits_for_a_caught_up_follower_outside_the_isr(
    partition: Partition, make_log: Any, make_order: Any, clock: Any
) -> None:
    partition.make_leader(make_order(isr=(1,), replicas=(1, 2)), make_log())
    partition.record_fetch(BrokerId(2), 0, 0)
    partition.append_as_leader(b"abc", acks=1)
    assert not partition.maybe_increment_high_watermark()
    clock.advance(0.2)
    assert partition.maybe_increment_high_watermark()


@pytest.mark.case("PAR-11")
def test_reassignment_tracks_added_replicas_until_it_ends(partition: Partition, make_log: Any, make_order: Any) -> None:
    log = make_log()
    partition.make_leader(make_order(replicas=(1, 2, 3, 4)), log)
    assert sorted(partition.followers) == [2, 3, 4]
    partition.make_leader(make_order(epoch=1, isr=(1, 4), replicas=(1, 4)), log)
    assert sorted(partition.followers) == [4]


def test_member_of_the_isr_outside_the_assignment_is_dropped(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    partition.make_leader(make_order(isr=(1, 2, 9), replicas=(1, 2)), make_log())
    assert partition.proposed_shrink() == (1, 2)


def test_high_watermark_waits_until_a_dropped_replica_has_left_the_isr(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    """At the end of a reassignment the leader hears of the new replicas first. Another controller could still elect a
    former one from the ISR."""
    partition.make_leader(make_order(isr=(1, 2, 9), replicas=(1, 2)), make_log())
    partition.append_as_leader(b"abc", acks=1)
    partition.record_fetch(BrokerId(2), 3, 0)
    assert not partition.maybe_increment_high_watermark()
    partition.settle_isr((1, 2), zk_version=1)
    assert partition.maybe_increment_high_watermark()


def test_leader_that_stays_leader_keeps_what_it_knows_of_its_followers(
    partition: Partition, make_log: Any, make_order: Any
) -> None:
    log = make_log()
    partition.make_leader(make_order(), log)
    partition.record_fetch(BrokerId(2), 0, 0)
    assert not partition.make_leader(make_order(epoch=1), log)
    assert partition.followers[BrokerId(2)].log_end_offset == 0
    partition.make_follower(make_order(leader=2, epoch=2), log)
    assert partition.make_leader(make_order(epoch=3), log)
    assert partition.followers[BrokerId(2)].log_end_offset == -1
