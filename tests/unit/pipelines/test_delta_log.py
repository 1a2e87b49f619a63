"""The state is found below foreign commits, compactions and files that are not commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.lake_state import IngestState, LakeCommit, LakeError, OffsetRange

APP = "klamm:main:orders"


def write_commit(table: Path, version: int, *actions: dict[str, object]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions) + "\n")


def info(operation: str, metadata: str | None = None, rows: int | None = None) -> dict[str, object]:
    fields: dict[str, object] = {"operation": operation}
    if metadata is not None:
        fields["userMetadata"] = metadata
    if rows is not None:
        fields["operationMetrics"] = {"numOutputRows": str(rows)}
    return {"commitInfo": fields}


def ours(seq: int, end: int) -> LakeCommit:
    return LakeCommit(APP, "orders", 1, seq, "me", seq, {0: OffsetRange(end - 5, end)}, {0: end})


def test_a_table_that_is_not_there_has_no_state(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path / "none")
    assert (log.exists(), log.versions(), log.state()) == (False, [], None)


def test_the_state_is_found_behind_what_is_not_ours(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("CREATE TABLE"))
    write_commit(tmp_path, 1, info("WRITE", ours(1, 5).to_json(), 5), {"txn": {"appId": APP, "version": 1}})
    write_commit(tmp_path, 2, info("OPTIMIZE"), {"add": {"dataChange": False}}, {"remove": {"dataChange": False}})
    write_commit(tmp_path, 3, info("WRITE", "a note of a user"), {"add": {"dataChange": True}})
    for noise in (
        "00000000000000000009.checkpoint.parquet",
        "00000000000000000003.crc",
        ".tmp.json",
        "_last_checkpoint",
    ):
        (tmp_path / "_delta_log" / noise).write_text("x")
    (tmp_path / "_delta_log" / "00000000000000000001.00000000000000000003.compacted.json").write_text("x")

    log = DeltaLog(tmp_path)
    assert log.versions() == [0, 1, 2, 3]
    assert log.state() == IngestState(APP, 1, 1, "me", {0: 5})
    commits = list(log.commits())
    assert [commit.changes_rows for commit in commits] == [False, False, False, True]
    assert (commits[1].output_rows, dict(commits[1].txns)) == (5, {APP: 1})


def test_a_commit_that_arrives_later_is_seen(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("WRITE", ours(1, 5).to_json()))
    log = DeltaLog(tmp_path)
    log.state()
    write_commit(tmp_path, 1, info("WRITE", ours(2, 10).to_json()))
    write_commit(tmp_path, 2, info("OPTIMIZE"))
    state = log.state()
    assert state is not None
    assert (state.seq, state.ends) == (2, {0: 10})


def test_an_older_log_may_be_cleaned_away(tmp_path: Path) -> None:
    write_commit(tmp_path, 7, info("WRITE", ours(3, 15).to_json()))
    state = DeltaLog(tmp_path).state()
    assert state is not None
    assert state.ends == {0: 15}


def test_a_garbled_commit_is_named(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("WRITE"))
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(LakeError, match=r"00000000000000000000\.json"):
        DeltaLog(tmp_path).state()
