"""A recreated, truncated or expired log is told from the one that was ingested, also after it has grown again."""

from __future__ import annotations

import pytest

from klamm.pipelines.anchors import EpochEnd, LogChange, LogFacts, NotTheSameLog, compare_log, record_crc
from klamm.pipelines.ingest_options import OnNewLog
from klamm.pipelines.lake_state import Anchor, IngestState, LakeRefusal
from klamm.pipelines.offset_kinds import LogBounds
from klamm.pipelines.table_rules import check_log, check_place, check_retention
from klamm.pipelines.topic_ingest import starting_offsets

FIRST = Anchor(0, 0, 111, 11)
NEWEST = Anchor(999, 2, 222, 22)
OTHER_FIRST = Anchor(0, 0, 333, 33)
OTHER = Anchor(999, 0, 444, 44)
REWRITTEN = Anchor(999, 2, 555, 22)
GROWN = LogBounds(0, 1500)


def table(ends: dict[int, int] | None = None, *, anchors: bool = True) -> IngestState:
    ends = {0: 1000} if ends is None else ends
    known = {0: NEWEST} if anchors else {}
    return IngestState("klamm:main:t", 1, 1, "me", ends, known, {0: FIRST} if anchors else {})


def change(facts: LogFacts, state: IngestState | None = None) -> LogChange | None:
    found = compare_log(state or table(), {0: facts})
    return found[0].change if found else None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (LogFacts(GROWN, NEWEST), None),
        (LogFacts(GROWN, REWRITTEN, compacted=True), None),
        (LogFacts(GROWN, OTHER, OTHER_FIRST, EpochEnd(0, 1500)), LogChange.RECREATED),
        (LogFacts(GROWN, OTHER, FIRST, EpochEnd(0, 700)), LogChange.TRUNCATED),
        # the first record has expired: the epochs decide
        (LogFacts(LogBounds(50, 1500), OTHER, None, EpochEnd(0, 700)), LogChange.TRUNCATED),
        (LogFacts(LogBounds(50, 1500), OTHER, None, EpochEnd(2, 1500)), LogChange.RECREATED),
        # shorter than the table
        (LogFacts(LogBounds(0, 500), None, OTHER_FIRST, EpochEnd(0, 500)), LogChange.RECREATED),
        (LogFacts(LogBounds(0, 500), None, FIRST, EpochEnd(0, 500)), LogChange.TRUNCATED),
        # no record at the anchor
        (LogFacts(GROWN, None, FIRST, EpochEnd(2, 1500), compacted=True), None),
        (LogFacts(GROWN, None, FIRST, EpochEnd(2, 1500)), LogChange.TRUNCATED),
        (LogFacts(GROWN, None, OTHER_FIRST, EpochEnd(0, 1500), compacted=True), LogChange.RECREATED),
        # retention
        (LogFacts(LogBounds(1000, 1500)), None),
        (LogFacts(LogBounds(1001, 1500)), LogChange.EXPIRED),
    ],
)
def test_what_became_of_the_log(facts: LogFacts, expected: LogChange | None) -> None:
    assert change(facts) == expected


def test_without_anchors_only_the_bounds_are_compared() -> None:
    assert change(LogFacts(GROWN), table(anchors=False)) is None
    assert change(LogFacts(LogBounds(0, 500)), table(anchors=False)) is LogChange.RECREATED


def test_a_partition_that_is_gone_means_another_topic() -> None:
    (found,) = compare_log(table({0: 1000, 1: 5}), {0: LogFacts(GROWN, NEWEST)})
    assert (found.partition, found.change) == (1, LogChange.RECREATED)


def test_the_head_of_a_new_partition_of_a_known_table_must_be_there() -> None:
    facts = {0: LogFacts(GROWN, NEWEST), 1: LogFacts(LogBounds(500, 1000))}
    (found,) = compare_log(table(), facts)
    assert (found.partition, found.change) == (1, LogChange.HEAD_MISSING)
    assert "offsets 0..499 are lost" in found.detail
    assert compare_log(table({}), facts) == [], "a new table starts with what is there"
    assert starting_offsets("t", {0: 5}, [0, 1]) == '{"t": {"0": 5, "1": 0}}'


def test_only_the_partitions_of_a_batch_are_compared() -> None:
    state = table({0: 1000, 1: 5})
    assert compare_log(state, {0: LogFacts(GROWN, NEWEST)}, [0]) == []


def test_record_checksums_keep_key_and_value_apart() -> None:
    said = [(1, b"a", b"b"), (1, b"ab", b""), (1, b"ab", None), (1, None, b"ab"), (2, b"a", b"b")]
    assert len({record_crc(*words) for words in said}) == len(said)


RECREATED = NotTheSameLog(0, LogChange.RECREATED, "the topic was recreated")
EXPIRED = NotTheSameLog(1, LogChange.EXPIRED, "offsets 5..8 are lost")


def test_the_policy_decides_about_another_log_and_never_about_a_loss() -> None:
    assert check_log("t", [], OnNewLog.FAIL) is False
    with pytest.raises(LakeRefusal, match="t-0: the topic was recreated; --on-new-log new-incarnation"):
        check_log("t", [RECREATED], OnNewLog.FAIL)
    assert check_log("t", [RECREATED], OnNewLog.NEW_INCARNATION) is True
    with pytest.raises(LakeRefusal, match=r"t-1: offsets 5\.\.8 are lost$"):
        check_log("t", [EXPIRED], OnNewLog.NEW_INCARNATION)


def test_a_log_that_delta_may_clean_is_refused_with_the_cure() -> None:
    check_retention("/lake/t", {"delta.logRetentionDuration": "interval 3650 days"})
    for properties in ({}, {"delta.logRetentionDuration": "interval 1 days"}):
        with pytest.raises(LakeRefusal, match="SET TBLPROPERTIES"):
            check_retention("/lake/t", properties)


def test_the_files_of_another_program_never_become_part_of_a_table() -> None:
    check_place("/lake/t", [])
    check_place("/lake/t", ["part-0.parquet", "_delta_log"])  # of a start that was killed
    with pytest.raises(LakeRefusal, match=r"holds something else than a Delta table, such as a\.csv"):
        check_place("/lake/t", ["b.csv", "a.csv"])
