"""What an ingest learns without Spark: are its newest commits sound, is there work, and how far is it?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.pipelines.test_delta_log import info, write_commit

from klamm.pipelines import audit_job, ingest
from klamm.pipelines.anchors import LogFacts
from klamm.pipelines.delta_log import AddedFile, TableCommit
from klamm.pipelines.idle import idle_report
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import Anchor, IngestState, LakeCommit, OffsetRange
from klamm.pipelines.maintenance import LogKey
from klamm.pipelines.offset_kinds import LogBounds
from klamm.pipelines.quick_audit import quick_audit
from klamm.pipelines.status import rate_of, topic_status
from klamm.pipelines.table_offsets import TableOffsets

APP = "klamm:main:orders"
ANCHOR = Anchor(9, 0, 77, 78)


def commit(version: int, start: int, end: int, *files: AddedFile, time_ms: int = 0) -> TableCommit:
    lake = LakeCommit(APP, "orders", 1, version, "me", version, {0: OffsetRange(start, end)}, {0: end}, {0: ANCHOR})
    return TableCommit(version, "WRITE", lake.to_json(), None, {APP: version}, True, files, time_ms)


def file(rows: int | None, first: int, last: int, partition: int = 0) -> AddedFile:
    return AddedFile(rows, (partition, partition), (first, last), 0)


SOUND = [commit(7, 0, 5, file(5, 0, 4)), commit(8, 5, 10, file(3, 5, 8))]


@pytest.mark.parametrize(
    ("kind", "newest"),
    [
        ("outside", commit(9, 10, 15, file(6, 10, 15))),
        ("outside", commit(9, 10, 15, file(1, 10, 10, partition=1))),
        ("duplicate", commit(9, 10, 15, file(6, 10, 14))),
        ("duplicate", commit(9, 10, 15, file(3, 10, 12), file(3, 12, 14))),
        ("unjoined", commit(9, 11, 15)),
        ("overlap", commit(9, 9, 15)),
    ],
)
def test_a_fault_of_the_newest_commits_is_found_in_the_log_alone(kind: str, newest: TableCommit) -> None:
    assert quick_audit(SOUND, "orders") == []
    assert [finding.kind for finding in quick_audit([*SOUND, newest], "orders")] == [kind]


def test_files_that_the_statistics_do_not_describe_are_left_to_the_full_audit() -> None:
    vague = commit(9, 10, 15, file(None, 0, 0), AddedFile(5, (0, 3), (0, 900), 0), AddedFile(5, None, None, 0))
    assert quick_audit([*SOUND, vague], "orders") == []


class StubKafka:
    """A topic with one partition whose log ends at 10, of which `stable` offsets can be read."""

    def __init__(self, stable: int = 10, anchor: Anchor | None = ANCHOR) -> None:
        self.stable = stable
        self.anchor = anchor

    def __enter__(self) -> StubKafka:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log_bounds(self, _topic: str) -> dict[int, LogBounds]:
        return {0: LogBounds(0, max(10, self.stable))}

    def stable_bounds(self, _topic: str) -> dict[int, LogBounds]:
        return {0: LogBounds(0, self.stable)}

    def log_facts(self, _topic: str, _state: IngestState) -> dict[int, LogFacts]:
        return {0: LogFacts(self.log_bounds("")[0], self.anchor)}

    def times_at(self, _topic: str, offsets: Mapping[int, int]) -> dict[int, int]:
        return dict.fromkeys(offsets, 4000)


def table(path: Path, end: int = 10, **changes: Any) -> LocalDirectory:
    lake = LakeCommit(APP, "orders", 3, 1, "me", 0, {0: OffsetRange(0, end)}, {0: end}, {0: ANCHOR})
    write_commit(path / "orders", 0, info("WRITE", replace(lake, **changes).to_json()))
    return LocalDirectory(path)


OPTIONS = IngestOptions("b:1", ["orders"], "/lake")


def is_idle(lake: LocalDirectory, kafka: StubKafka, options: IngestOptions = OPTIONS) -> bool:
    return idle_report(lake, "orders", cast(KafkaTopics, kafka), options) is not None


def test_hole_12_nothing_new_is_seen_without_spark(tmp_path: Path) -> None:
    lake = table(tmp_path)
    assert is_idle(lake, StubKafka())
    assert not is_idle(lake, StubKafka(stable=11)), "a record came"
    assert not is_idle(lake, StubKafka(anchor=Anchor(9, 0, 1, 2))), "another log must be refused"
    assert not is_idle(lake, StubKafka(), replace(OPTIONS, name="other")), "another ingest's table must be refused"
    assert not is_idle(LocalDirectory(tmp_path / "none"), StubKafka()), "a table must be made"
    assert not is_idle(table(tmp_path / "old", anchors={}), StubKafka()), "anchors must be adopted"


def test_hole_12_an_idle_run_starts_no_spark_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(tmp_path)

    def no_spark(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(ingest, "spark_session", no_spark)
    monkeypatch.setattr(ingest, "KafkaTopics", lambda _server: StubKafka())
    before = sorted(path.name for path in tmp_path.rglob("*"))
    (report,) = ingest.run_ingest(replace(OPTIONS, lake=str(tmp_path)))
    assert (report.offsets, report.batches, report.epoch, report.ends) == (0, 0, 3, {0: 10})
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_the_backlog_is_what_the_table_lacks(tmp_path: Path) -> None:
    kafka = cast(KafkaTopics, StubKafka())
    assert ingest.backlog(table(tmp_path, 4), ["orders"], kafka) == 6
    assert ingest.backlog(LocalDirectory(tmp_path / "none"), ["orders"], kafka) == 10
    assert ingest.backlog(None, ["orders"], kafka) == 10


def test_the_rate_counts_the_offsets_since_the_oldest_commit() -> None:
    newest_first = [commit(3, 20, 60, time_ms=6000), commit(2, 10, 20, time_ms=3000), commit(1, 0, 10, time_ms=1000)]
    assert rate_of(newest_first) == pytest.approx(10.0)
    assert rate_of(newest_first[:1]) is None


def test_the_status_tells_lag_open_transaction_and_dead_letters(tmp_path: Path) -> None:
    lake = table(tmp_path, 4, dead_letters=2)
    status = topic_status(lake, "orders", cast(KafkaTopics, StubKafka(stable=7)), now_ms=9000)
    assert (status.lag, status.waiting, status.waiting_seconds, status.dead_letters) == (3, 3, 5.0, 2)
    assert status.line() == "orders: lag 3, 3 wait behind an open transaction for 5 s, 2 dead letters"


def test_hole_9_a_run_tells_what_an_open_transaction_holds_back() -> None:
    assert ingest.waiting_offsets(cast(KafkaTopics, StubKafka(stable=7)), "orders") == 3
    assert ingest.waiting_offsets(cast(KafkaTopics, StubKafka()), "orders") == 0


def test_hole_3_the_audit_asks_kafka_although_the_table_has_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = table(tmp_path).child("orders")
    complete = TableOffsets({LogKey(1, 0): [OffsetRange(0, 10)]}, [], 10)
    monkeypatch.setattr(audit_job, "_read_offsets", lambda *_: complete)
    for name in ("_row_checksums", "_log_checksums"):
        monkeypatch.setattr(audit_job, name, lambda *_: {})

    def kinds(kafka: StubKafka) -> list[str]:
        report = audit_job.audit_table(cast(Any, None), lake, "orders", cast(KafkaTopics, kafka))
        return [finding.kind for finding in report.findings]

    assert kinds(StubKafka()) == []
    assert kinds(StubKafka(anchor=Anchor(9, 0, 1, 2))) == ["other-log"]
