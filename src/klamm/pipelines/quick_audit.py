"""Proves the newest commits of a table from its log alone: each commit names the ranges of its rows, and the statistics
of its files say how many rows of which offsets they hold.

A file of the ingest holds one partition, so a file with as many rows as its span has offsets is complete. This takes
milliseconds, so every start does it; the full audit reads the rows and asks Kafka about what is missing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from klamm.pipelines.audit import Finding, check_commits
from klamm.pipelines.delta_log import AddedFile, TableCommit
from klamm.pipelines.lake_state import LakeCommit

_LEFT_TO_OTHERS = ("log-incomplete", "foreign-commit")
"""The newest commits are not the whole log, and the ingest asks about changes by others itself."""


def quick_audit(commits: Sequence[TableCommit], topic: str) -> list[Finding]:
    """`commits`: the newest ones, oldest first. What lies before them is not judged."""
    findings = [finding for finding in check_commits(commits, topic).findings if finding.kind not in _LEFT_TO_OTHERS]
    for commit in commits:
        lake = commit.lake
        if lake is not None and not lake.is_claim:
            findings += _check_files(commit, lake)
    return findings


def _check_files(commit: TableCommit, lake: LakeCommit) -> Iterable[Finding]:
    where, number = f"version {commit.version}", lake.incarnation
    by_partition: dict[int, list[tuple[int, int, int]]] = {}
    for file in commit.added:
        one = _one_partition(file)
        if one is None:
            continue  # without statistics, or of a table with other files: the full audit reads it
        partition, first, last, rows = one
        planned = lake.ranges.get(partition)
        if planned is None or first < planned.start or last >= planned.end:
            yield Finding("outside", f"{where} has rows outside its range", partition, first, last + 1, number)
        if rows > last + 1 - first:
            yield Finding("duplicate", f"{where} has {rows} rows in a file", partition, first, last + 1, number)
        by_partition.setdefault(partition, []).append((first, last, rows))
    for partition, spans in sorted(by_partition.items()):
        spans.sort()
        for (first, last, rows), (later, until, others) in pairwise(spans):
            dense = rows == last + 1 - first and others == until + 1 - later
            if dense and later <= last:
                yield Finding("duplicate", f"{where} has two files with them", partition, later, last + 1, number)


def _one_partition(file: AddedFile) -> tuple[int, int, int, int] | None:
    if file.rows is None or file.partitions is None or file.offsets is None:
        return None
    least, greatest = file.partitions
    return (least, *file.offsets, file.rows) if least == greatest else None
