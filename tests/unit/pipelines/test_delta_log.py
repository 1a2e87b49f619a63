"""The state is found below foreign commits, compactions and files that are not commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.pipelines.delta_log import AddedFile, DeltaLog
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import IngestState, LakeCommit, LakeError, LakeRefusal, OffsetRange
from klamm.pipelines.maintenance import FORGET, Maintenance

APP = "klamm:main:orders"


def write_commit(table: Path, version: int, *actions: Mapping[str, object]) -> None:
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
    log = DeltaLog(LocalDirectory(tmp_path / "none"))
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

    log = DeltaLog(LocalDirectory(tmp_path))
    assert log.versions() == [0, 1, 2, 3]
    assert log.state() == IngestState(APP, 1, 1, "me", {0: 5})
    commits = list(log.commits())
    assert [commit.changes_rows for commit in commits] == [False, False, False, True]
    assert (commits[1].output_rows, dict(commits[1].txns)) == (5, {APP: 1})


def test_a_commit_that_arrives_later_is_seen(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("WRITE", ours(1, 5).to_json()))
    log = DeltaLog(LocalDirectory(tmp_path))
    log.state()
    write_commit(tmp_path, 1, info("WRITE", ours(2, 10).to_json()))
    write_commit(tmp_path, 2, info("OPTIMIZE"))
    state = log.state()
    assert state is not None
    assert (state.seq, state.ends) == (2, {0: 10})


def test_an_older_log_may_be_cleaned_away(tmp_path: Path) -> None:
    write_commit(tmp_path, 7, info("WRITE", ours(3, 15).to_json()))
    state = DeltaLog(LocalDirectory(tmp_path)).state()
    assert state is not None
    assert state.ends == {0: 15}


def test_a_garbled_commit_is_named(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("WRITE"))
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(LakeError, match=r"00000000000000000000\.json"):
        DeltaLog(LocalDirectory(tmp_path)).state()


def claimed(epoch: int, **fields: object) -> str:
    return replace(LakeCommit(APP, "orders", epoch, 0, "me", None, {}, {}), **fields).to_json()  # type: ignore[arg-type]


def test_hole_2_a_log_that_lost_its_batches_is_an_error_and_never_an_empty_table(tmp_path: Path) -> None:
    write_commit(tmp_path, 7, info("WRITE", claimed(3)))
    write_commit(tmp_path, 8, info("WRITE", claimed(4)))
    with pytest.raises(LakeRefusal, match="begins at version 7 and has no batch"):
        DeltaLog(LocalDirectory(tmp_path)).state()
    write_commit(tmp_path, 9, info("WRITE", claimed(5, ends={0: 12})))
    state = DeltaLog(LocalDirectory(tmp_path)).state()
    assert state is not None
    assert state.ends == {0: 12}, "the floor of a claim tells"


def test_a_new_table_with_claims_only_has_no_positions(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, info("CREATE TABLE"))
    write_commit(tmp_path, 1, info("WRITE", claimed(1)))
    state = DeltaLog(LocalDirectory(tmp_path)).state()
    assert state is not None
    assert (state.epoch, state.ends) == (1, {})


def test_hole_11_changes_by_others_after_the_last_batch_are_found(tmp_path: Path) -> None:
    changed = {"remove": {"dataChange": True}}
    write_commit(tmp_path, 0, info("DELETE"), changed)
    write_commit(tmp_path, 1, info("WRITE", ours(1, 5).to_json()))
    write_commit(tmp_path, 2, info("RESTORE"), changed)
    write_commit(tmp_path, 3, info("WRITE", claimed(2)))
    write_commit(tmp_path, 4, info("OPTIMIZE"), {"add": {"dataChange": False}})
    write_commit(tmp_path, 5, info("DELETE", Maintenance(APP, "orders", FORGET).to_json()), changed)
    found = DeltaLog(LocalDirectory(tmp_path)).foreign_changes()
    assert [(commit.version, commit.operation) for commit in found] == [(2, "RESTORE")]


def test_dead_letters_are_counted_from_the_statistics_of_files(tmp_path: Path) -> None:
    stats = {
        "numRecords": 5,
        "minValues": {"partition": 0, "offset": 10},
        "maxValues": {"partition": 0, "offset": 14},
        "nullCount": {"error": 3},
    }
    add = {"add": {"dataChange": True, "stats": json.dumps(stats)}}
    write_commit(tmp_path, 0, info("WRITE", replace(ours(1, 15), dead_letters=4).to_json()), add)
    log = DeltaLog(LocalDirectory(tmp_path))
    state = log.state()
    assert state is not None
    assert state.dead_letters == 6
    assert next(iter(log.commits())).added == [AddedFile(5, (0, 0), (10, 14), 2)]
