"""Lag of groups and plans of resets, as tables."""

from __future__ import annotations

import pytest

from klamm.admin.group_lag import Kind, PartitionLag, ResetRefused, ResetTo, check_inactive, lags, plan_reset, total_lag
from klamm.model.ids import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def test_lag_of_every_partition_that_has_a_commit_or_a_member() -> None:
    found = lags({A: 4, B: 90}, {A: (0, 10), C: (0, 7)}, {A: "app", C: "app"})
    assert found == [
        PartitionLag(A, 4, 0, 10, 6, 0, "app"),
        PartitionLag(B, 90, None, None, None, 0, ""),  # its topic is gone
        PartitionLag(C, None, 0, 7, None, 0, "app"),
    ]
    assert total_lag(found) == 6


def test_a_commit_beyond_the_end_has_no_lag_and_one_before_the_start_has_lost_records() -> None:
    found = lags({A: 12, B: 3}, {A: (0, 10), B: (5, 10)})
    assert [(entry.lag, entry.expired) for entry in found] == [(0, 0), (7, 2)]


@pytest.mark.parametrize(
    ("to", "before", "after", "note"),
    [
        (ResetTo(Kind.EARLIEST), 12, 5, ""),
        (ResetTo(Kind.LATEST), 12, 20, ""),
        (ResetTo(Kind.OFFSET, 8), 12, 8, ""),
        (ResetTo(Kind.OFFSET, 5), 12, 5, ""),
        (ResetTo(Kind.OFFSET, 20), 12, 20, ""),
        (ResetTo(Kind.OFFSET, 4), 12, 5, "the log begins at 5"),
        (ResetTo(Kind.OFFSET, 21), None, 20, "the log ends at 20"),
        (ResetTo(Kind.SHIFT, -3), 12, 9, ""),
        (ResetTo(Kind.SHIFT, 3), 12, 15, ""),
        (ResetTo(Kind.SHIFT, 30), 12, 20, "the log ends at 20"),
        (ResetTo(Kind.TIME, 1_000), 12, 9, ""),
    ],
)
def test_where_a_reset_goes(to: ResetTo, before: int | None, after: int, note: str) -> None:
    (planned,) = plan_reset(to, {A: (5, 20)}, {} if before is None else {A: before}, {A: 9})
    assert (planned.partition, planned.before, planned.after, planned.note) == (A, before, after, note)


def test_a_time_after_the_last_record_means_the_end() -> None:
    (planned,) = plan_reset(ResetTo(Kind.TIME, 1_000), {A: (5, 20)}, {A: 12}, {A: -1})
    assert (planned.after, planned.note) == (20, "no record is that new")


def test_what_a_reset_skips_or_reads_again() -> None:
    forward, back = plan_reset(ResetTo(Kind.OFFSET, 8), {A: (0, 20), B: (0, 20)}, {A: 5, B: 12})
    assert (forward.skipped, forward.again) == (3, 0)
    assert (back.skipped, back.again) == (0, 4)
    (first,) = plan_reset(ResetTo(Kind.LATEST), {A: (0, 20)}, {})
    assert (first.skipped, first.again) == (0, 0)


def test_nothing_to_shift() -> None:
    with pytest.raises(ResetRefused, match="no offset for t-0"):
        plan_reset(ResetTo(Kind.SHIFT, 1), {A: (0, 20)}, {})


@pytest.mark.parametrize(("state", "members"), [("Stable", 2), ("PreparingRebalance", 0), ("Empty", 1)])
def test_a_group_in_use_is_not_reset(state: str, members: int) -> None:
    with pytest.raises(ResetRefused, match=f"group g is {state} with {members} member"):
        check_inactive("g", state, members)


def test_a_group_without_members_may_be_reset() -> None:
    check_inactive("g", "Empty", 0)
    check_inactive("g", "Dead", 0)
