"""Which offsets a backfill reads, and what its commit tells the audit."""

from __future__ import annotations

import pytest
from tests.unit.pipelines.test_quick_looks import commit

from klamm.pipelines.audit import check_commits, find_missing, find_outside, joined
from klamm.pipelines.backfill import parse_bound, partitioning, plan
from klamm.pipelines.columns import PartitionBy
from klamm.pipelines.delta_log import TableCommit
from klamm.pipelines.lake_state import OffsetRange
from klamm.pipelines.maintenance import BACKFILL, LogKey, Maintenance, parse_maintenance
from klamm.pipelines.offset_kinds import LogBounds

P0 = LogKey(1, 0)


def test_a_backfill_stays_between_the_log_start_and_the_positions_of_the_writer() -> None:
    ends, log = {0: 50, 1: 50}, {0: LogBounds(10, 90), 1: LogBounds(0, 50), 2: LogBounds(0, 9)}
    assert plan(ends, log, {}, {}).ranges == {0: (10, 50), 1: (0, 50)}, "partition 2 is left to the writer"
    planned = plan(ends, log, {0: 5, 1: 5}, {0: 80, 1: 20})
    assert (planned.ranges, planned.expired) == ({0: (10, 50), 1: (5, 20)}, 5)
    assert plan(ends, log, {0: 60, 1: 20}, {0: 70, 1: 20}).ranges == {}
    assert plan(ends, log, {0: 0}, {0: 4}).expired == 4


@pytest.mark.parametrize("text", ["-3", "yesterday", "2026-13-01", ""])
def test_a_bound_that_is_neither_offset_nor_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_bound(text)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_bound("2026-01-01T00:00") == parse_bound("2026-01-01T02:00+02:00") == (1_767_225_600_000, True)


def test_the_partitioning_is_that_of_the_table() -> None:
    assert partitioning(["topic", "date", "hour"]) is PartitionBy.HOUR
    assert partitioning(["topic"]) is PartitionBy.NONE


def test_the_audit_expects_what_a_backfill_read_again() -> None:
    said = Maintenance("klamm:main:orders", "orders", BACKFILL, backfilled={P0: [OffsetRange(0, 4)]})
    assert parse_maintenance(said.to_json()) == said
    again = TableCommit(9, "MERGE", said.to_json(), 4, {}, changes_rows=True)
    audited = check_commits([commit(0, 10, 20), again], "orders")
    assert audited.findings == []
    present = {P0: [OffsetRange(0, 3), OffsetRange(10, 20)]}
    assert find_outside(joined(audited.ranges, audited.backfilled), present) == []
    assert find_missing(audited, present) == {P0: [(3, 4)]}, "4 to 9 were never promised"
