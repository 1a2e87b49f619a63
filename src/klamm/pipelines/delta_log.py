"""Reads the commits of a Delta table from its `_delta_log`, newest first, without Spark.

Every batch reads the state twice, so it may cost a millisecond at most: only the newest commit file is read, not the
table's history, which takes Spark half a second. Only `<20 digits>.json` files are commits; log checkpoints, compacted
logs and checksum files are skipped. Commit files appear by rename, so a file that exists is complete.

Limit: files are read with `open`, so the lake must be a local or mounted directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from klamm.pipelines.lake_state import IngestState, LakeCommit, LakeError, fold_state, parse_commit

_COMMIT_NAME = re.compile(r"(\d{20})\.json")


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

    @property
    def lake(self) -> LakeCommit | None:
        return parse_commit(self.user_metadata)


def parse_table_commit(version: int, text: str) -> TableCommit:
    info: dict[str, object] = {}
    txns: dict[str, int] = {}
    changes_rows = False
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
    )


class DeltaLog:
    """The commits of the Delta table at `table`. Keeps no file open; remembers the newest version it saw."""

    def __init__(self, table: Path) -> None:
        self._directory = table / "_delta_log"
        self._newest: int | None = None

    def exists(self) -> bool:
        return self._directory.is_dir() and bool(self.versions())

    def versions(self) -> list[int]:
        """The versions whose commit file exists, in order."""
        if not self._directory.is_dir():
            return []
        names = (_COMMIT_NAME.fullmatch(entry.name) for entry in os.scandir(self._directory))
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
            return parse_table_commit(version, path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise LakeError(f"cannot read the Delta commit {path}: {e}") from e

    def commits(self) -> Iterator[TableCommit]:
        """All commits that the log still has, oldest first."""
        for version in self.versions():
            yield self.read(version)

    def state(self) -> IngestState | None:
        return fold_state(self._lake_commits_newest_first())

    def _lake_commits_newest_first(self) -> Iterator[LakeCommit]:
        version = self.newest_version()
        while version is not None and version >= 0 and self._path(version).exists():
            lake = self.read(version).lake
            if lake is not None:
                yield lake
            version -= 1

    def _path(self, version: int) -> Path:
        return self._directory / f"{version:020d}.json"
