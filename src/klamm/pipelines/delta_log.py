"""Reads the commits of a Delta table from its `_delta_log`, newest first, without Spark.

Every batch reads the state twice, so it may cost a millisecond at most: only the newest commit file is read, not the
table's history, which takes Spark half a second. Only `<20 digits>.json` files are commits; log checkpoints, compacted
logs and checksum files are skipped. Commit files appear by rename, so a file that exists is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from klamm.pipelines.lake_directory import LakeDirectory
from klamm.pipelines.lake_state import (
    IngestState,
    LakeCommit,
    LakeError,
    LakeRefusal,
    fold_state,
    parse_commit,
    parse_object,
)

LOG_NAME = "_delta_log"
_COMMIT_NAME = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file, as the statistics in the commit describe it. Without statistics, `rows` is None."""

    rows: int | None
    partitions: tuple[int, int] | None
    """Least and greatest."""
    offsets: tuple[int, int] | None
    errors: int
    """Rows with an error: dead letters."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version of the table: the parts that an ingest and its audit use."""

    version: int
    operation: str
    user_metadata: str | None
    output_rows: int | None
    txns: Mapping[str, int]
    changes_rows: bool
    """The commit adds or removes rows; a compaction of files does not."""
    added: Sequence[AddedFile] = ()
    time_ms: int | None = None

    @property
    def lake(self) -> LakeCommit | None:
        return parse_commit(self.user_metadata)


def parse_table_commit(version: int, text: str) -> TableCommit:
    info: dict[str, object] = {}
    txns: dict[str, int] = {}
    changes_rows = False
    added: list[AddedFile] = []
    for line in text.splitlines():
        if not line:
            continue
        action = json.loads(line)
        if "commitInfo" in action:
            info = action["commitInfo"]
        elif "txn" in action:
            txns[action["txn"]["appId"]] = action["txn"]["version"]
        elif "add" in action or "remove" in action:
            changes_rows |= bool((action.get("add") or action["remove"]).get("dataChange", True))
            if "add" in action:
                added.append(_parse_file(action["add"]))
    metrics = info.get("operationMetrics")
    rows = metrics.get("numOutputRows") if isinstance(metrics, dict) else None
    metadata = info.get("userMetadata")
    return TableCommit(
        version=version,
        operation=str(info.get("operation", "unknown")),
        user_metadata=metadata if isinstance(metadata, str) else None,
        output_rows=None if rows is None else int(rows),
        txns=txns,
        changes_rows=changes_rows,
        added=added,
        time_ms=time_ms if isinstance(time_ms := info.get("timestamp"), int) else None,
    )


def _parse_file(add: Mapping[str, Any]) -> AddedFile:
    stats = json.loads(add.get("stats") or "{}")
    rows, nulls = stats.get("numRecords"), stats.get("nullCount", {}).get("error")
    return AddedFile(
        rows=rows,
        partitions=_least_and_greatest(stats, "partition"),
        offsets=_least_and_greatest(stats, "offset"),
        errors=rows - nulls if rows is not None and nulls is not None else 0,
    )


def _least_and_greatest(stats: Mapping[str, Any], column: str) -> tuple[int, int] | None:
    least, greatest = stats.get("minValues", {}).get(column), stats.get("maxValues", {}).get(column)
    return None if least is None or greatest is None else (int(least), int(greatest))


class DeltaLog:
    """The commits of the Delta table at `table`. Keeps no file open; remembers the newest version it saw."""

    def __init__(self, table: LakeDirectory) -> None:
        self._table = table
        self._directory = table.child(LOG_NAME)
        self._newest: int | None = None
        self._reached: int | None = None

    def exists(self) -> bool:
        return bool(self.versions())

    def versions(self) -> list[int]:
        """The versions whose commit file exists, in order."""
        names = (_COMMIT_NAME.fullmatch(name) for name in self._directory.names())
        return sorted(int(name.group(1)) for name in names if name)

    def newest_version(self) -> int | None:
        """Lists the directory once; afterwards it only looks for the next number, however long the log is."""
        if self._newest is None:
            versions = self.versions()
            if not versions:
                return None
            self._newest = versions[-1]
        while self._path(self._newest + 1).exists():
            self._newest += 1
        return self._newest

    def read(self, version: int) -> TableCommit:
        path = self._path(version)
        try:
            return parse_table_commit(version, path.read_text())
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise LakeError(f"cannot read the Delta commit {path}: {e}") from e

    def commits(self) -> Iterator[TableCommit]:
        """All commits that the log still has, oldest first."""
        for version in self.versions():
            yield self.read(version)

    def state(self) -> IngestState | None:
        """None for a table without commits of an ingest. Raises LakeError if the log no longer has the positions."""
        self._reached = None
        state = fold_state(self._lake_commits_newest_first())
        if self._reached == 0 or (state is not None and state.has_positions):
            return state
        if self._reached is None:
            return None
        raise LakeRefusal(
            f"{self._table}: the log begins at version {self._reached} and has no batch of an ingest: its commits were "
            "cleaned away, so nothing tells where the table ends; restore them, or ingest into a new lake"
        )

    def foreign_changes(self) -> list[TableCommit]:
        """Commits after the newest batch that changed rows and are not by klamm, oldest first."""
        found: list[TableCommit] = []
        for commit in self.newest_first():
            lake = commit.lake
            if lake is not None and not lake.is_claim:
                break
            if lake is None and commit.changes_rows and parse_object(commit.user_metadata) is None:
                found.append(commit)
        return found[::-1]

    def newest(self, count: int) -> list[TableCommit]:
        """The newest commits, oldest first."""
        return list(islice(self.newest_first(), count))[::-1]

    def newest_first(self) -> Iterator[TableCommit]:
        """Back to the first version that the log still has, which `_reached` names."""
        version = self.newest_version()
        while version is not None and version >= 0 and self._path(version).exists():
            self._reached = version
            yield self.read(version)
            version -= 1

    def _lake_commits_newest_first(self) -> Iterator[LakeCommit]:
        for commit in self.newest_first():
            lake = commit.lake
            if lake is not None:
                yield replace(lake, dead_letters=lake.dead_letters + sum(file.errors for file in commit.added))

    def _path(self, version: int) -> LakeDirectory:
        return self._directory.child(f"{version:020d}.json")
