"""Checks an ingested table offset by offset, from three sources: its commits, the offsets of its rows, and Kafka's log.

Every offset between the start of a partition's first range and the end of its last one must be in the table once, or be
explained: a transaction marker, an aborted record, a record that compaction removed or that was forgotten on purpose.
The ranges of commits must join without overlap, rows must lie inside them, and only klamm may have changed rows. The
log must still be the one that was ingested. Rows must say what its records say, and what the ingest saw there. Each
violation is a Finding. A topic that was recreated has several incarnations, and each is a set of logs of its own.

Pure: `audit_job` reads the table and asks Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, TypeAlias

from klamm.pipelines.anchors import NotTheSameLog
from klamm.pipelines.delta_log import TableCommit
from klamm.pipelines.lake_state import APP_PREFIX, FIRST_INCARNATION, Anchor, LakeCommit, LakeError, OffsetRange
from klamm.pipelines.maintenance import REPLAY, LogKey, parse_maintenance
from klamm.pipelines.offset_kinds import OffsetKind, OffsetSpan


@dataclass(frozen=True, slots=True)
class Finding:
    """A violated rule. If the rule is about offsets, they are [start, end)."""

    kind: str
    detail: str
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    incarnation: int = FIRST_INCARNATION

    def line(self) -> str:
        place = "" if self.partition is None else f" partition {self.partition}"
        if self.incarnation > FIRST_INCARNATION:
            place += f" of incarnation {self.incarnation}"
        if self.start is not None and self.end is not None:
            last = self.end - 1
            place += f" offset {self.start}" if last <= self.start else f" offsets {self.start}..{last}"
        return f"{self.kind}{place}: {self.detail}"


class RepeatedOffset(NamedTuple):
    partition: int
    offset: int
    times: int
    incarnation: int = FIRST_INCARNATION


@dataclass(frozen=True, slots=True)
class CommitAudit:
    """The ranges of each log according to the commits, in order, and the violations in the commits."""

    ranges: Mapping[LogKey, Sequence[OffsetRange]]
    findings: Sequence[Finding]
    forgotten: Mapping[LogKey, Sequence[OffsetRange]] = field(default_factory=dict)
    backfilled: Mapping[LogKey, Sequence[OffsetRange]] = field(default_factory=dict)
    anchors: Mapping[LogKey, Anchor] = field(default_factory=dict)
    """The newest record of each log, as the ingest saw it before it wrote the rows."""


def check_commits(commits: Iterable[TableCommit], topic: str) -> CommitAudit:
    """`commits`: all commits in the table's log, oldest first."""
    ranges: dict[LogKey, list[OffsetRange]] = {}
    forgotten: dict[LogKey, list[OffsetRange]] = {}
    backfilled: dict[LogKey, list[OffsetRange]] = {}
    anchors: dict[LogKey, Anchor] = {}
    findings: list[Finding] = []
    previous: LakeCommit | None = None
    first = True
    for commit in commits:
        if first and commit.version > 0:
            findings.append(Finding("log-incomplete", f"the table's log begins at version {commit.version}"))
        first = False
        try:
            lake, maintenance = commit.lake, parse_maintenance(commit.user_metadata)
        except LakeError as e:
            findings.append(Finding("bad-metadata", f"version {commit.version}: {e}"))
            continue
        if maintenance is not None:
            for key, erased in maintenance.forgotten.items():
                forgotten.setdefault(key, []).extend(erased)
            for key, added in maintenance.backfilled.items():
                backfilled.setdefault(key, []).extend(added)
            if maintenance.operation == REPLAY:
                anchors.clear()  # it may have repaired the timestamps of these rows
            continue
        if lake is None:
            findings.extend(_foreign(commit))
            continue
        findings.extend(_order(commit.version, lake, previous, topic))
        previous = lake
        findings.extend(_batch(commit, lake, ranges))
        moved = [p for p, planned in lake.ranges.items() if planned.end > planned.start and p in lake.anchors]
        anchors |= {LogKey(lake.incarnation, p): lake.anchors[p] for p in moved}
    return CommitAudit(ranges, findings, forgotten, backfilled, anchors)


def _foreign(commit: TableCommit) -> Iterable[Finding]:
    ours = sorted(app for app in commit.txns if app.startswith(APP_PREFIX))
    if ours:
        yield Finding("commit-without-metadata", f"version {commit.version} is by {ours[0]} and names no ranges")
    elif commit.changes_rows:
        yield Finding(
            "foreign-commit", f"version {commit.version} ({commit.operation}) changed rows and is not by the ingest"
        )


def _order(version: int, lake: LakeCommit, previous: LakeCommit | None, topic: str) -> Iterable[Finding]:
    if lake.topic != topic:
        yield Finding("foreign-ingest", f"version {version} is for topic {lake.topic}")
    if previous is None:
        return
    if lake.app != previous.app:
        yield Finding("foreign-ingest", f"version {version} is by {lake.app}, the one before by {previous.app}")
    elif (lake.epoch, lake.seq) <= (previous.epoch, previous.seq):
        yield Finding(
            "order",
            f"version {version} has epoch {lake.epoch} seq {lake.seq} after epoch {previous.epoch} seq {previous.seq}",
        )
    elif lake.incarnation < previous.incarnation:
        yield Finding("order", f"version {version} has incarnation {lake.incarnation} after {previous.incarnation}")


def _batch(commit: TableCommit, lake: LakeCommit, ranges: dict[LogKey, list[OffsetRange]]) -> Iterable[Finding]:
    """Check one commit against the ranges so far, and add its own."""
    where, number = f"version {commit.version}", lake.incarnation
    is_first = not any(key.incarnation == number for key in ranges)
    for partition, planned in sorted(lake.ranges.items()):
        known = ranges.setdefault(LogKey(number, partition), [])
        if not known and not is_first and planned.start > 0:
            yield Finding("unjoined", f"{where} begins a new partition late", partition, 0, planned.start, number)
        if known and planned.start < known[-1].end:
            until = max(planned.start, min(planned.end, known[-1].end))
            yield Finding("overlap", f"{where} begins before {known[-1].end}", partition, planned.start, until, number)
        elif known and planned.start > known[-1].end:
            yield Finding(
                "unjoined",
                f"{where} begins after the end of the range before it",
                partition,
                known[-1].end,
                planned.start,
                number,
            )
        if lake.ends.get(partition) != planned.end:
            yield Finding("ends", f"{where} says it ends at {lake.ends.get(partition)}", partition, *planned, number)
        known.append(planned)
    offsets = sum(planned.end - planned.start for planned in lake.ranges.values())
    if commit.output_rows is not None and commit.output_rows > offsets:
        yield Finding("too-many-rows", f"{where} wrote {commit.output_rows} rows for {offsets} offsets")


def subtract(whole: OffsetRange, parts: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of `whole` that none of `parts` covers.

    >>> subtract(OffsetRange(0, 10), [OffsetRange(0, 3), OffsetRange(5, 6)])
    [OffsetRange(start=3, end=5), OffsetRange(start=6, end=10)]
    """
    left: list[OffsetRange] = []
    position = whole.start
    for part in sorted(parts):
        if part.end <= position:
            continue
        if part.start >= whole.end:
            break
        if part.start > position:
            left.append(OffsetRange(position, part.start))
        position = part.end
    if position < whole.end:
        left.append(OffsetRange(position, whole.end))
    return left


Ranges: TypeAlias = Mapping[LogKey, Sequence[OffsetRange]]


def joined(*parts: Ranges) -> Ranges:
    """The ranges of all parts, log by log."""
    return {
        key: [r for part in parts for r in part.get(key, ())] for key in sorted({k for part in parts for k in part})
    }


def find_missing(promised: CommitAudit, present: Ranges) -> dict[LogKey, list[OffsetRange]]:
    """Offsets that commits promise and the table does not have: markers, aborted, compacted or lost."""
    missing: dict[LogKey, list[OffsetRange]] = {}
    for key, known in joined(promised.ranges, promised.backfilled).items():
        batches = promised.ranges.get(key)
        if batches:  # they join, else there is a finding; a backfill may lie apart
            known = [*known, OffsetRange(min(r.start for r in batches), max(r.end for r in batches))]
        there = (*present.get(key, ()), *promised.forgotten.get(key, ()))
        gaps = [gap for whole in merged(known) for gap in subtract(whole, there)]
        if gaps:
            missing[key] = gaps
    return missing


def merged(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """In order, those that touch or overlap as one.

    >>> merged([OffsetRange(5, 9), OffsetRange(0, 5), OffsetRange(20, 21)])
    [OffsetRange(start=0, end=9), OffsetRange(start=20, end=21)]
    """
    found: list[OffsetRange] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, end))
        else:
            found.append(OffsetRange(start, end))
    return found


def find_outside(ranges: Ranges, present: Ranges) -> list[Finding]:
    """Rows that no commit's range covers."""
    return [
        Finding("outside", "rows that no range of a commit covers", key.partition, *left, key.incarnation)
        for key, runs in sorted(present.items())
        for run in runs
        for left in subtract(run, ranges.get(key, ()))
    ]


def find_other_log(changes: Iterable[NotTheSameLog], incarnation: int) -> list[Finding]:
    """Kafka's log is not the one that was ingested, or no longer joins the table."""
    return [
        Finding("other-log", f"{change.change.value}: {change.detail}", change.partition, incarnation=incarnation)
        for change in changes
    ]


def find_edited(rows: Mapping[LogKey, Mapping[int, int]], log: Mapping[LogKey, Mapping[int, int]]) -> list[Finding]:
    """Rows whose record checksum is not the log's, by log and offset."""
    return [
        Finding("content", "the row says something else than the record", key.partition, offset, offset + 1, key[0])
        for key, checksums in sorted(rows.items())
        for offset, checksum in sorted(checksums.items())
        if log.get(key, {}).get(offset, checksum) != checksum
    ]


def find_duplicates(repeated: Iterable[RepeatedOffset]) -> list[Finding]:
    """Neighbouring offsets that occur equally often make one finding."""
    found: list[Finding] = []
    for partition, offset, times, number in sorted(repeated, key=lambda r: (r.incarnation, r.partition, r.offset)):
        detail = f"in the table {times} times"
        last = found[-1] if found else None
        if last and (last.incarnation, last.partition, last.end, last.detail) == (number, partition, offset, detail):
            found[-1] = Finding("duplicate", detail, partition, last.start, offset + 1, number)
        else:
            found.append(Finding("duplicate", detail, partition, offset, offset + 1, number))
    return found


class Explained(NamedTuple):
    """Offsets that are missing in the table for a good reason."""

    kind: str
    partition: int
    start: int
    end: int


_LOSS = {
    OffsetKind.RECORD: "the log has these records, but the table does not",
    OffsetKind.BELOW_LOG_START: "below the log start: the log no longer shows what they were",
    OffsetKind.ABSENT: "neither in the table nor in the log, and the topic is not compacted",
    OffsetKind.BEYOND_LOG_END: "beyond the end of the log, so it has never had them",
}


def judge(key: LogKey, spans: Iterable[OffsetSpan], *, compacted: bool) -> Iterable[Explained | Finding]:
    """Explain offsets that the table lacks by what Kafka has there."""
    partition = key.partition
    for kind, start, end in spans:
        if kind in (OffsetKind.MARKER, OffsetKind.ABORTED):
            yield Explained(kind.value, partition, start, end)
        elif kind is OffsetKind.ABSENT and compacted:
            yield Explained("compacted", partition, start, end)
        else:
            yield Finding("gap", _LOSS[kind], partition, start, end, key.incarnation)


@dataclass(slots=True)
class AuditReport:
    """The result for one topic."""

    topic: str
    version: int
    rows: int
    incarnation: int
    ends: Mapping[int, int]
    findings: list[Finding] = field(default_factory=list)
    explained: list[Explained] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return {
            "topic": self.topic,
            "clean": self.is_clean,
            "version": self.version,
            "rows": self.rows,
            "incarnation": self.incarnation,
            "ends": self.ends,
            "findings": [asdict(finding) for finding in self.findings],
            "explained": [explained._asdict() for explained in self.explained],
        }

    def lines(self) -> list[str]:
        """As text."""
        verdict = "clean" if self.is_clean else f"{len(self.findings)} findings"
        explained = sum(entry.end - entry.start for entry in self.explained)
        head = f"{self.topic}: {verdict}; {self.rows} rows, {explained} offsets explained, version {self.version}"
        return [head, *(f"  {finding.line()}" for finding in self.findings)]
