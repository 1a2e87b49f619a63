"""The tables of a report: the findings in rows and columns, the same from both engines, and their Parquet files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.pipelines.incidents.analysis.findings import Findings
from klamm.pipelines.incidents.analysis.outages import NO_LEADER, STALLED, UNDER_MIN_ISR, Interval, Outage, covered
from klamm.pipelines.incidents.parser import UNKNOWN
from klamm.pipelines.incidents.reading import Logs
from klamm.pipelines.incidents.record import Record

if TYPE_CHECKING:
    import pyarrow as pa

INT: Final = "int"
SECONDS: Final = "seconds"
TIME: Final = "time"
TEXT: Final = "text"
BOOL: Final = "bool"
IDS: Final = "ids"

NOTED: Final[Mapping[str, str]] = {
    "stale.controller": "a broker refused a request of a deposed controller",
    "ctl.error": "a broker failed to become controller",
    "ctl.moved": "a controller found out that it was deposed",
    "dir.failed": "a log directory failed",
    "dir.offline": "replicas are offline with their log directory",
    "dir.halt": "a broker stopped, because all its log directories failed",
    "isr.rejected": "the controller rejected a change of an ISR",
    "isr.stale": "a leader tried to write an ISR that others had changed",
    "append.refused": "a leader refused records, because too few replicas were in sync",
    "part.failed": "the controller could not change the state of a partition",
    "zk.expired": "a session with ZooKeeper expired",
}
"""Records that explain, beside the outages."""


class Table(NamedTuple):
    columns: Sequence[tuple[str, str]]
    """Name and type."""
    rows: Sequence[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        names = [name for name, _ in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def make_tables(findings: Findings, logs: Logs) -> dict[str, Table]:
    return {
        "outages": _outages(findings.outages),
        "partitions": _partitions(findings),
        "controller_terms": _table("epoch:int broker:int since:time ready:time until:time cause:text gap:seconds", (
            (t.epoch, t.broker, t.since, t.ready, t.until, t.cause, _s(t.gap_ms)) for t in findings.terms
        )),
        "broker_losses": _table(
            "broker:int how:text fault:time earliest:time noticed:time back:time detect:seconds evidence:text "
            "was_controller:bool",
            (
                (*x[:6], _s(x.noticed - x.fault), x.evidence, x.was_controller)
                for x in findings.losses
            ),
        ),
        "isr_churn": _table("broker:int left:int joined:int unexplained:int partitions:int out:seconds", (
            (c.broker, c.left, c.joined, c.unexplained, c.partitions, _s(c.out_ms)) for c in findings.churn
        )),
        "unclean_elections": _table(
            "topic:text partition:int time:time leader:int leader_before:int isr_before:ids offset:int",
            (
                (u.place.topic, u.place.partition, u.t, u.leader, u.leader_before, u.isr_before, u.offset)
                for u in findings.unclean
            ),
        ),
        "reassignments": _table(
            "what:text start:time end:time seconds:seconds replicas_before:ids replicas_after:ids cancelled:bool",
            (
                (r.what, r.start, r.end, _between(r.start, r.end), r.replicas_before, r.replicas_after, r.cancelled)
                for r in findings.reassignments
            ),
        ),
        "deletions": _table("topic:text start:time end:time seconds:seconds waited_for:text", (
            (d.topic, d.start, d.end, _between(d.start, d.end), d.waited_for) for d in findings.deletions
        )),
        "partition_states": _table(
            "topic:text partition:int incarnation:int version:int leader:int leader_epoch:int isr:ids replicas:ids "
            "since:time until:time",
            (
                (*row.place, *row[1:8])
                for rows in findings.history.values() for row in rows
            ),
        ),
        "clock_skew": _table("broker:int ahead:seconds error:seconds pairs:int corrected:bool", (
            (s.broker, _s(s.offset_ms), _s(s.error_ms), s.pairs, s.corrected) for s in findings.skews
        )),
        "notes": _notes(findings),
        "files": _table(
            "path:text broker:int entries:int facts:int ignored:int not_understood:int first:time last:time "
            "copy_of:text problem:text",
            logs.files,
        ),
        "not_understood": _not_understood(logs.records),
    }  # fmt: skip


def _outages(outages: Iterable[Outage]) -> Table:
    return _table(
        "topic:text partition:int start:time end:time seconds:seconds no_leader:seconds under_min_isr:seconds "
        "stalled:seconds detect:seconds elect:seconds propagate:seconds broker:int how:text leader_before:int "
        "leader_after:int open:bool",
        (
            (
                *o.place[:2], o.start, o.end, _s(o.end - o.start), _s(o.no_leader_ms), _s(o.under_min_isr_ms),
                _s(o.stalled_ms), *map(_s, o.split), o.broker, o.how, o.leader_before, o.leader_after, o.open,
            )
            for o in outages
        ),
    )  # fmt: skip


def _partitions(findings: Findings) -> Table:
    """Seconds that each partition could not be written, worst first."""
    by_name: dict[tuple[str, int], list[Interval]] = {}
    for interval in findings.intervals:
        by_name.setdefault(interval.place[:2], []).append(interval)
    outages = Counter(outage.place[:2] for outage in findings.outages)
    rows: list[tuple[Any, ...]] = []
    for (topic, partition), found in by_name.items():
        parts = [covered(i for i in found if i.measure == m) for m in (NO_LEADER, UNDER_MIN_ISR, STALLED)]
        rows.append((topic, partition, outages[topic, partition], _s(covered(found)), *map(_s, parts)))
    rows.sort(key=lambda row: (-(row[3] or 0), row[0], row[1]))
    return _table(
        "topic:text partition:int outages:int seconds:seconds no_leader:seconds under_min_isr:seconds stalled:seconds",
        rows,
    )


def _notes(findings: Findings) -> Table:
    """One row per kind, broker and minute, so that a loop of errors is one line."""
    minutes: dict[tuple[int, str, int | None], list[Record]] = {}
    for record in findings.records:
        if record.kind in NOTED and findings.start <= record.t <= findings.end:
            minutes.setdefault((record.t // 60_000, record.kind, record.broker), []).append(record)
    return _table(
        "time:time broker:int what:text times:int about:text",
        (
            (min(r.t for r in found), broker, NOTED[kind], sum(r.times for r in found), _about(found))
            for (_, kind, broker), found in sorted(
                minutes.items(), key=lambda item: (item[0][0], item[1][0].t, item[0][1])
            )
        ),
    )


def _about(records: Sequence[Record]) -> str:
    partitions = sorted({f"{r.topic}-{r.partition}" for r in records if r.topic is not None})
    shown = ", ".join(partitions[:6]) + (f" and {len(partitions) - 6} more" if len(partitions) > 6 else "")
    return shown or next((r.text for r in records if r.text), "")


def _not_understood(records: Iterable[Record]) -> Table:
    shapes: dict[str, int] = {}
    for record in records:
        if record.kind == UNKNOWN:
            shapes[record.text or ""] = shapes.get(record.text or "", 0) + record.times
    return _table("shape:text times:int", sorted(shapes.items(), key=lambda item: (-item[1], item[0])))


def _table(columns: str, rows: Iterable[Sequence[Any]]) -> Table:
    names = [tuple(column.split(":")) for column in columns.split()]
    return Table([(name, kind) for name, kind in names], [tuple(row) for row in rows])


def _s(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _between(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1000


def clock(t: int | None) -> str:
    """A time as people write it, in UTC."""
    return "" if t is None else datetime.fromtimestamp(t / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def write_parquet(tables: Mapping[str, Table], directory: Path) -> None:
    import pyarrow.parquet

    for name, table in tables.items():
        pyarrow.parquet.write_table(as_arrow(table), directory / f"{name}.parquet")


def as_arrow(table: Table) -> pa.Table:
    import pyarrow

    types = {
        INT: pyarrow.int64(),
        SECONDS: pyarrow.float64(),
        TIME: pyarrow.timestamp("ms", tz="UTC"),
        TEXT: pyarrow.string(),
        BOOL: pyarrow.bool_(),
        IDS: pyarrow.list_(pyarrow.int64()),
    }
    columns = list(zip(*table.rows, strict=True)) or [() for _ in table.columns]
    return pyarrow.table(
        {
            name: pyarrow.array(list(values), types[kind])
            for (name, kind), values in zip(table.columns, columns, strict=True)
        }
    )
