"""The decision of an ingest about a batch, in every state that a crash or a second writer can leave."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.pipelines.lake_state import (
    AlreadyCommitted,
    Anchor,
    BatchRefused,
    Fenced,
    IngestState,
    LakeCommit,
    LakeError,
    OffsetRange,
    WriteBatch,
    check_batch,
    fold_state,
    parse_commit,
    txn_version,
)

APP = "klamm:main:orders"


def state(ends: dict[int, int], *, writer: str = "me", seq: int = 4) -> IngestState:
    return IngestState(APP, epoch=2, seq=seq, writer=writer, ends=ends)


def batch(epoch: int, seq: int, ends: dict[int, int], writer: str = "me") -> LakeCommit:
    return LakeCommit(APP, "orders", epoch, seq, writer, seq - 1, {p: OffsetRange(0, e) for p, e in ends.items()}, ends)


def claim(epoch: int, writer: str) -> LakeCommit:
    return LakeCommit(APP, "orders", epoch, 0, writer, None, {}, {})


def test_a_batch_that_joins_is_written_and_moves_only_its_partitions() -> None:
    decision = check_batch(state({0: 10, 1: 7}), {0: OffsetRange(10, 15)}, "me")
    assert decision == WriteBatch(5, {0: 15, 1: 7})


def test_the_first_batch_may_start_anywhere() -> None:
    assert check_batch(state({}), {0: OffsetRange(40, 50)}, "me") == WriteBatch(5, {0: 50})


def test_a_batch_executed_again_is_skipped() -> None:
    assert check_batch(state({0: 15, 1: 7}), {0: OffsetRange(10, 15), 1: OffsetRange(7, 7)}, "me") == AlreadyCommitted()


@pytest.mark.parametrize(
    ("ranges", "numbers"),
    [
        ({0: OffsetRange(11, 15)}, ("10", "11")),  # a gap
        ({0: OffsetRange(9, 15)}, ("10", "9")),  # would write rows twice
        ({0: OffsetRange(10, 15), 1: OffsetRange(6, 9)}, ("7", "6")),  # one partition joins, the other does not
        ({0: OffsetRange(5, 10), 1: OffsetRange(7, 9)}, ("10", "5")),  # one is committed, the other is not
        ({0: OffsetRange(10, 8)}, ("10", "8")),
    ],
)
def test_anything_else_is_refused_with_both_numbers(ranges: dict[int, OffsetRange], numbers: tuple[str, str]) -> None:
    decision = check_batch(state({0: 10, 1: 7}), ranges, "me")
    assert isinstance(decision, BatchRefused)
    assert all(number in decision.reason for number in numbers)


def test_another_writer_fences_even_a_batch_that_joins() -> None:
    decision = check_batch(state({0: 10}, writer="other"), {0: OffsetRange(10, 15)}, "me")
    assert decision == Fenced(by="other (epoch 2)")


def test_a_table_whose_state_is_gone_is_not_written() -> None:
    assert isinstance(check_batch(None, {0: OffsetRange(0, 1)}, "me"), BatchRefused)


def test_positions_are_those_of_the_newest_batch_though_a_claim_came_after() -> None:
    """The older writer committed up to 9 between the newer one's first read and its claim."""
    folded = fold_state([claim(2, "newer"), batch(1, 3, {0: 9}, "older"), batch(1, 2, {0: 5}, "older")])
    assert folded == IngestState(APP, epoch=2, seq=0, writer="newer", ends={0: 9})


def test_a_claim_without_a_floor_says_nothing_of_positions() -> None:
    assert fold_state([claim(3, "me")]) == IngestState(APP, 3, 0, "me", {}, has_positions=False)
    assert fold_state([]) is None


def test_every_version_of_an_epoch_lies_above_the_epochs_before() -> None:
    assert txn_version(2, 0) > txn_version(1, 2**32 - 1)
    assert txn_version(2**31 - 1, 2**32 - 1) < 2**63


partitions = st.integers(0, 500)
offsets = st.integers(0, 2**62)


@given(ends=st.dictionaries(partitions, offsets), seq=st.integers(1, 1000))
def test_metadata_comes_back_as_it_was_written(ends: dict[int, int], seq: int) -> None:
    commit = batch(7, seq, ends)
    assert parse_commit(commit.to_json()) == commit


@pytest.mark.parametrize("text", [None, "", "a note", '"klamm:"', "{klamm:", '{"app":"other:klamm:"}', "[1]"])
def test_foreign_metadata_is_passed_over(text: str | None) -> None:
    assert parse_commit(text) is None


@pytest.mark.parametrize("change", [{"ends": None}, {"ranges": {"0": [1]}}, {"epoch": "x"}, {"ends": {"zero": 1}}])
def test_broken_metadata_of_ours_is_never_passed_over(change: dict[str, object]) -> None:
    fields = {**json.loads(batch(1, 1, {0: 5}).to_json()), **change}
    with pytest.raises(LakeError, match="malformed"):
        parse_commit(json.dumps(fields))


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=30))
def test_no_history_of_crashes_and_take_overs_loses_or_doubles_an_offset(history: list[tuple[int, bool, bool]]) -> None:
    """A writer plans from what it last read; at times a batch is lost or repeated, or a new writer claims the table."""
    log: list[LakeCommit] = [claim(1, "w1")]
    rows: list[int] = []
    me, planned_from = "w1", 0
    for length, crash, repeat in history:
        if crash:
            epoch = log[0].epoch + 1
            me = f"w{epoch}"
            log.insert(0, claim(epoch, me))
            folded = fold_state(log)
            assert folded is not None
            planned_from = folded.ends.get(0, 0)
        for _ in range(2 if repeat else 1):
            ranges = {0: OffsetRange(planned_from, planned_from + length)}
            now = fold_state(log)
            assert now is not None
            decision = check_batch(now, ranges, me)
            if isinstance(decision, WriteBatch):
                log.insert(0, LakeCommit(APP, "orders", now.epoch, decision.seq, me, 0, ranges, decision.ends))
                rows += range(*ranges[0])
        planned_from += length
    assert rows == list(range(len(rows)))


def test_hole_2_a_claim_keeps_the_positions_as_a_floor() -> None:
    floor = replace(claim(3, "new"), ends={0: 15, 1: 4}, anchors={0: Anchor(14, 0, 7, 8)})
    found = fold_state([floor])
    assert found is not None
    assert (found.ends, found.anchors) == ({0: 15, 1: 4}, {0: Anchor(14, 0, 7, 8)})


def test_a_stale_floor_does_no_harm() -> None:
    found = fold_state([replace(claim(3, "new"), ends={0: 15, 1: 4}), batch(2, 4, {0: 20}), batch(2, 3, {0: 10})])
    assert found is not None
    assert (found.epoch, found.ends) == (3, {0: 20, 1: 4})


def test_a_new_incarnation_begins_without_positions() -> None:
    found = fold_state([replace(claim(3, "new"), incarnation=2), batch(2, 4, {0: 20})])
    assert found is not None
    assert (found.incarnation, found.ends, found.has_positions) == (2, {}, True)


def test_a_new_partition_of_a_known_table_starts_at_0() -> None:
    assert check_batch(state({0: 10}), {1: OffsetRange(0, 5)}, "me") == WriteBatch(5, {0: 10, 1: 5})
    decision = check_batch(state({0: 10}), {1: OffsetRange(500, 505)}, "me")
    assert isinstance(decision, BatchRefused)
    assert "ends at 0, the batch starts at 500" in decision.reason


def test_everything_that_a_commit_says_survives_json() -> None:
    said = replace(
        batch(2, 4, {0: 20}),
        anchors={0: Anchor(19, 3, 4_000_000_000, 5)},
        origins={0: Anchor(0, 0, 1, 2)},
        incarnation=2,
        dead_letters=3,
    )
    assert parse_commit(said.to_json()) == said
    floor = replace(claim(3, "new"), ends={0: 5})
    assert parse_commit(floor.to_json()) == floor
