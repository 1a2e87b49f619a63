"""The audit finds each planted fault, and nothing in a correct table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from klamm.pipelines.anchors import LogChange, NotTheSameLog
from klamm.pipelines.audit import (
    CommitAudit,
    Explained,
    Finding,
    RepeatedOffset,
    check_commits,
    find_duplicates,
    find_edited,
    find_missing,
    find_other_log,
    find_outside,
    judge,
    subtract,
)
from klamm.pipelines.delta_log import TableCommit
from klamm.pipelines.lake_state import Anchor, LakeCommit, OffsetRange
from klamm.pipelines.maintenance import FORGET, REPLAY, LogKey, Maintenance
from klamm.pipelines.offset_kinds import BatchHead, OffsetKind, OffsetSpan, classify, join_spans, parts_of

APP = "klamm:main:orders"


def ours(
    version: int,
    ranges: dict[int, tuple[int, int]],
    *,
    epoch: int = 1,
    rows: int | None = None,
    ends: dict[int, int] | None = None,
    app: str = APP,
) -> TableCommit:
    planned = {p: OffsetRange(*r) for p, r in ranges.items()}
    lake = LakeCommit(
        app, "orders", epoch, version, "me", version, planned, ends or {p: r.end for p, r in planned.items()}
    )
    return TableCommit(version, "WRITE", lake.to_json(), rows, {app: version}, True)


def kinds(commits: Sequence[TableCommit]) -> list[str]:
    return [finding.kind for finding in check_commits(commits, "orders").findings]


CREATE = TableCommit(0, "CREATE TABLE", None, None, {}, False)


def test_commits_that_join_are_clean() -> None:
    commits = [CREATE, ours(1, {0: (0, 5), 1: (3, 3)}, rows=5), ours(2, {0: (5, 9), 1: (3, 8)}, rows=9)]
    audited = check_commits(commits, "orders")
    assert audited.findings == []
    assert audited.ranges == {(1, 0): [(0, 5), (5, 9)], (1, 1): [(3, 3), (3, 8)]}


@pytest.mark.parametrize(
    ("kind", "commits"),
    [
        ("overlap", [CREATE, ours(1, {0: (0, 5)}), ours(2, {0: (4, 9)})]),
        ("unjoined", [CREATE, ours(1, {0: (0, 5)}), ours(2, {0: (6, 9)})]),
        ("ends", [CREATE, ours(1, {0: (0, 5)}, ends={0: 6})]),
        ("too-many-rows", [CREATE, ours(1, {0: (0, 5)}, rows=6)]),
        ("order", [CREATE, ours(1, {0: (0, 5)}, epoch=2), ours(2, {0: (5, 9)}, epoch=1)]),
        ("foreign-ingest", [CREATE, ours(1, {0: (0, 5)}), ours(2, {0: (5, 9)}, app="klamm:other:orders")]),
        ("foreign-commit", [CREATE, TableCommit(1, "DELETE", None, None, {}, True)]),
        ("commit-without-metadata", [CREATE, TableCommit(1, "WRITE", None, 3, {APP: 1}, True)]),
        ("bad-metadata", [CREATE, TableCommit(1, "WRITE", f'{{"app":"{APP}"}}', 3, {APP: 1}, True)]),
        ("log-incomplete", [ours(3, {0: (0, 5)})]),
    ],
)
def test_each_fault_of_the_commits_is_found(kind: str, commits: list[TableCommit]) -> None:
    assert kinds(commits) == [kind]


def test_an_optimize_is_no_fault() -> None:
    assert kinds([CREATE, ours(1, {0: (0, 5)}), TableCommit(2, "OPTIMIZE", None, None, {}, False)]) == []


def test_the_offsets_of_an_overlap_are_named() -> None:
    findings = check_commits([CREATE, ours(1, {0: (0, 5)}), ours(2, {0: (2, 9)})], "orders").findings
    assert [(f.partition, f.start, f.end) for f in findings] == [(0, 2, 5)]


P0, P1, P2 = (LogKey(1, partition) for partition in range(3))
RANGES = {P0: [OffsetRange(10, 15), OffsetRange(15, 20)], P1: [OffsetRange(0, 3)]}


def test_a_planted_gap_is_missing() -> None:
    present = {P0: [OffsetRange(10, 12), OffsetRange(13, 19)]}
    assert find_missing(CommitAudit(RANGES, []), present) == {P0: [(12, 13), (19, 20)], P1: [(0, 3)]}
    assert find_missing(CommitAudit(RANGES, []), {P0: [OffsetRange(10, 20)], P1: [OffsetRange(0, 3)]}) == {}


def test_rows_outside_the_ranges_are_found() -> None:
    found = find_outside(RANGES, {P0: [OffsetRange(8, 20)], P2: [OffsetRange(0, 1)]})
    assert [(f.kind, f.partition, f.start, f.end) for f in found] == [("outside", 0, 8, 10), ("outside", 2, 0, 1)]


def test_planted_duplicates_are_found_and_neighbours_joined() -> None:
    found = find_duplicates([RepeatedOffset(0, 8, 2), RepeatedOffset(0, 7, 2), RepeatedOffset(0, 9, 3)])
    assert [f.line() for f in found] == [
        "duplicate partition 0 offsets 7..8: in the table 2 times",
        "duplicate partition 0 offset 9: in the table 3 times",
    ]


@pytest.mark.parametrize(
    ("parts", "left"),
    [([], [(0, 10)]), ([(0, 10)], []), ([(-5, 2), (9, 30)], [(2, 9)]), ([(3, 8), (2, 4)], [(0, 2), (8, 10)])],
)
def test_subtract(parts: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert subtract(OffsetRange(0, 10), [OffsetRange(*part) for part in parts]) == left


def test_only_what_kafka_explains_is_explained() -> None:
    spans = [OffsetSpan(kind, i, i + 1) for i, kind in enumerate(OffsetKind)]
    verdicts = dict(zip(OffsetKind, judge(P0, spans, compacted=False), strict=True))
    assert {kind for kind, verdict in verdicts.items() if isinstance(verdict, Explained)} == {
        OffsetKind.MARKER,
        OffsetKind.ABORTED,
    }
    absent = [OffsetSpan(OffsetKind.ABSENT, 4, 9)]
    assert list(judge(LogKey(1, 3), absent, compacted=True)) == [Explained("compacted", 3, 4, 9)]
    (lost,) = judge(LogKey(1, 3), absent, compacted=False)
    assert isinstance(lost, Finding)
    assert (lost.kind, lost.partition, lost.start, lost.end) == ("gap", 3, 4, 9)


def data(start: int, end: int, producer: int = -1) -> BatchHead:
    return BatchHead(start, end - 1, False, producer >= 0, producer, range(start, end))


def marker(offset: int, producer: int) -> BatchHead:
    return BatchHead(offset, offset, True, True, producer, [offset])


def test_markers_and_aborted_records_are_told_from_records() -> None:
    """Producer 7 commits, aborts and commits again, while a producer without transactions writes in between."""
    log = [data(0, 15, 7), marker(15, 7), data(16, 19, 7), data(19, 20), marker(20, 7), data(21, 24, 7), marker(24, 7)]
    assert join_spans(classify(log, [(7, 16)], 0, 25)) == [
        (OffsetKind.RECORD, 0, 15),
        (OffsetKind.MARKER, 15, 16),
        (OffsetKind.ABORTED, 16, 19),
        (OffsetKind.RECORD, 19, 20),
        (OffsetKind.MARKER, 20, 21),
        (OffsetKind.RECORD, 21, 24),
        (OffsetKind.MARKER, 24, 25),
    ]


def test_offsets_that_compaction_took_are_absent() -> None:
    compacted = BatchHead(10, 19, False, False, -1, [12, 19])
    assert join_spans(classify([compacted, data(25, 30)], [], 5, 28)) == [
        (OffsetKind.ABSENT, 5, 12),
        (OffsetKind.RECORD, 12, 13),
        (OffsetKind.ABSENT, 13, 19),
        (OffsetKind.RECORD, 19, 20),
        (OffsetKind.ABSENT, 20, 25),
        (OffsetKind.RECORD, 25, 28),
    ]


def test_hole_14_what_is_beyond_the_log_end_is_never_compaction() -> None:
    beyond = [OffsetSpan(OffsetKind.BEYOND_LOG_END, 4, 9)]
    (lost,) = judge(P0, beyond, compacted=True)
    assert isinstance(lost, Finding)
    assert (lost.kind, lost.start, lost.end) == ("gap", 4, 9)


def test_hole_3_another_log_is_a_finding_without_any_gap() -> None:
    change = NotTheSameLog(1, LogChange.RECREATED, "the topic was recreated")
    (found,) = find_other_log([change], 2)
    assert found.line() == "other-log partition 1 of incarnation 2: recreated: the topic was recreated"


def test_hole_4_a_new_partition_that_begins_late_is_unjoined() -> None:
    commits = [CREATE, ours(1, {0: (0, 5)}), ours(2, {0: (5, 9), 1: (500, 510)})]
    (found,) = check_commits(commits, "orders").findings
    assert (found.kind, found.partition, found.start, found.end) == ("unjoined", 1, 0, 500)


def test_the_offsets_of_each_incarnation_are_counted_apart() -> None:
    first = ours(1, {0: (0, 5)})
    again = replace(parse(first), seq=2, incarnation=2, ranges={0: OffsetRange(0, 3)}, ends={0: 3})
    commits = [CREATE, first, TableCommit(2, "WRITE", again.to_json(), 3, {APP: 2}, True)]
    audited = check_commits(commits, "orders")
    assert (audited.findings, audited.ranges) == ([], {(1, 0): [(0, 5)], (2, 0): [(0, 3)]})
    assert find_duplicates([RepeatedOffset(0, 1, 2, 1), RepeatedOffset(0, 2, 2, 2)]) == [
        Finding("duplicate", "in the table 2 times", 0, 1, 2, 1),
        Finding("duplicate", "in the table 2 times", 0, 2, 3, 2),
    ]
    back = replace(again, seq=3, incarnation=1, ranges={0: OffsetRange(5, 6)}, ends={0: 6})
    assert "order" in kinds([*commits, TableCommit(3, "WRITE", back.to_json(), 1, {APP: 3}, True)])


def parse(commit: TableCommit) -> LakeCommit:
    assert commit.lake is not None
    return commit.lake


def test_hole_11_forgotten_offsets_are_known() -> None:
    forget = Maintenance(APP, "orders", FORGET, {P0: [OffsetRange(2, 3)]})
    commits = [CREATE, ours(1, {0: (0, 5)}), TableCommit(2, "DELETE", forget.to_json(), None, {}, True)]
    audited = check_commits(commits, "orders")
    assert audited.findings == []
    present = {P0: [OffsetRange(0, 2), OffsetRange(3, 5)]}
    assert find_missing(audited, present) == {}


def test_the_newest_record_that_the_ingest_saw_is_known_until_a_replay_changes_rows() -> None:
    """A claim repeats the anchors of earlier batches, and a batch those of partitions that did not move."""
    anchors = {p: Anchor(4, 0, 7, 10 + p) for p in (0, 1)}
    batch = replace(parse(ours(1, {0: (0, 5), 1: (5, 5)})), anchors=anchors)
    claim = replace(batch, epoch=2, seq=0, batch=None, ranges={})
    replay = Maintenance(APP, "orders", REPLAY)
    commits = [
        TableCommit(n, "WRITE", said.to_json(), None, {}, False) for n, said in enumerate((batch, replay, claim))
    ]
    assert check_commits(commits[:1], "orders").anchors == {P0: anchors[0]}
    assert check_commits(commits, "orders").anchors == {}


def test_an_edited_row_is_found() -> None:
    assert find_edited({P0: {3: 1, 4: 2}}, {P0: {3: 1, 4: 9}}) == [
        Finding("content", "the row says something else than the record", 0, 4, 5)
    ]


def test_only_the_parts_of_spans_in_gaps_are_judged() -> None:
    spans = [OffsetSpan(OffsetKind.RECORD, 0, 10), OffsetSpan(OffsetKind.MARKER, 10, 11)]
    assert list(parts_of(spans, [(2, 4), (8, 11), (20, 30)])) == [
        (OffsetKind.RECORD, 2, 4),
        (OffsetKind.RECORD, 8, 10),
        (OffsetKind.MARKER, 10, 11),
    ]
