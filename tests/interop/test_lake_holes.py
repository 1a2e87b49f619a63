"""Each way in which an ingest once lost or doubled records without a word: now it is refused, repaired or told.

`KLAMM_TEST_BOOTSTRAP` names a running cluster to use instead, such as Apache Kafka's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from tests.interop.lake_table import WAIT_SECONDS, Lake, kinds, once, wait_until

from klamm.client.groups import GroupAdmin
from klamm.pipelines.columns import PartitionBy
from klamm.pipelines.decode import Decode, Format
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.ingest_options import IngestOptions, OnNewLog
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeCommit, LakeError, LakeRefusal, OffsetRange
from klamm.pipelines.maintenance_job import TableMaintenance
from klamm.pipelines.topic_ingest import TopicIngest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
NANOSECONDS = 1_760_000_000_000_000_000


def test_holes_1_and_3_a_recreated_topic_is_refused_found_and_ingested_as_a_new_incarnation(lake: Lake) -> None:
    lake.produce(100)
    lake.ingest_cleanly()
    assert lake.audit().is_clean

    lake.recreate(50)
    assert kinds(lake.audit()) == {"other-log": 1}, "the table is complete, but the log is another one"
    with pytest.raises(LakeRefusal, match="the topic was recreated"):
        lake.ingest()

    lake.produce(100)  # past the table's position
    with pytest.raises(LakeRefusal, match=r"another record is at offset 99.*the topic was recreated"):
        lake.ingest()
    assert kinds(lake.audit()) == {"other-log": 1}
    epoch = lake.state().epoch

    report = lake.ingest_cleanly(on_new_log=OnNewLog.NEW_INCARNATION)
    assert (report.incarnation, report.offsets, report.epoch) == (2, 150, epoch + 1)
    found = lake.audit()
    assert (found.findings, found.rows, found.incarnation) == ([], 250, 2)
    numbered = Counter((row["incarnation"], row["offset"]) for row in lake.rows("incarnation", "offset"))
    assert numbered == Counter({(number, offset): 1 for number, end in ((1, 100), (2, 150)) for offset in range(end)})

    lake.produce(5)
    assert lake.ingest_cleanly().offsets == 5, "the new incarnation goes on by itself"


def test_hole_1_a_topic_recreated_while_it_is_ingested_is_refused_before_the_next_batch(lake: Lake) -> None:
    lake.produce(100)
    (report,) = lake.ingest(max_offsets_per_trigger=50, at_point=once("after-commit", lambda: lake.recreate(300)))
    assert report.failure is not None
    assert "recreated" in report.failure
    assert dict(lake.state().ends) == {0: 50}
    assert len(lake.rows("offset")) == 50


def test_hole_2_positions_survive_a_cleaned_log_and_a_lowered_retention_is_refused(lake: Lake) -> None:
    lake.produce(20)
    lake.ingest_cleanly()
    lake.produce(1)
    lake.ingest_cleanly()  # its claim has the floor
    log = lake.path / lake.topic / "_delta_log"
    claims = [commit.version for commit in DeltaLog(LocalDirectory(log.parent)).commits() if commit.lake]
    assert lake.state().anchors, "each commit names records of the log"
    lake.table().alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    with pytest.raises(LakeRefusal, match="logRetentionDuration is 'interval 1 days'"):
        lake.ingest()
    for version in range(claims[-1]):
        (log / f"{version:020d}.json").unlink()
    assert dict(lake.state().ends) == {0: 21}
    (log / f"{claims[-1]:020d}.json").unlink()
    with pytest.raises(LakeRefusal, match="nothing tells where the table ends"):
        lake.state()


def test_hole_4_the_lost_head_of_a_new_partition_is_a_loss(lake: Lake) -> None:
    lake.produce(10)
    lake.ingest_cleanly()
    lake.admin.create_partitions([NewPartitions(lake.topic, 2)])[lake.topic].result(30)
    with KafkaTopics(lake.bootstrap) as kafka:
        wait_until(lambda: len(kafka.log_bounds(lake.topic)) == 2)
    wait_until(lambda: len(lake.admin.list_topics(lake.topic, timeout=30).topics[lake.topic].partitions) == 2)
    lake.produce(10, partition=1)
    gone = TopicPartition(lake.topic, 1, 4)
    lake.admin.delete_records([gone])[gone].result(30)
    with pytest.raises(LakeRefusal, match=r"offsets 0\.\.3 are lost: the partition is new"):
        lake.ingest()


LOCK = """
import fcntl, sys
file = open(sys.argv[1], "a")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(9)
print("locked", flush=True)
sys.stdin.read()
"""


def test_hole_5_only_one_driver_has_the_lock_of_a_table(lake: Lake) -> None:
    """The kernel's lock, so another process sees it; the JVM has it while a batch is written."""
    lake.produce(10)
    lock = lake.path / "_klamm" / "locks" / f"{lake.topic}.lock"
    command = [sys.executable, "-c", LOCK, str(lock)]
    codes: list[int] = []
    lake.ingest_cleanly(
        at_point=once("before-write", lambda: codes.append(subprocess.run(command, input=b"", check=False).returncode))
    )
    assert codes == [9]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LakeRefusal, match="another ingest writes to"):
            lake.ingest()
        assert lake.state().epoch == 1
    lake.produce(5)
    assert lake.ingest_cleanly(take_over=True).offsets == 5


def test_hole_5_a_stalled_writer_keeps_out_its_successor(lake: Lake, scaled: Callable[[int, int], int]) -> None:
    """Else its rename, when it wakes up, replaces a commit of the successor."""
    if not scaled(0, 1):
        pytest.skip("starts a second Spark: make soak")
    lake.produce(10)
    command = [sys.executable, "-m", "klamm", "lake", "ingest", "--bootstrap-server", lake.bootstrap]
    command += ["--topics", lake.topic, "--lake", str(lake.path), "--trigger", "1s", "--master", "local[1]"]
    older = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    log = DeltaLog(LocalDirectory(lake.path / lake.topic))
    try:
        wait_until(lambda: older.poll() is not None or ((state := log.state()) is not None and state.ends == {0: 10}))
        assert older.poll() is None, older.communicate()
        os.killpg(older.pid, signal.SIGSTOP)
        with pytest.raises(LakeRefusal, match="another ingest writes to"):
            lake.ingest()
        assert lake.state().epoch == 1
    finally:
        os.killpg(older.pid, signal.SIGKILL)
        older.communicate()
    lake.produce(5)
    assert lake.ingest_cleanly(take_over=True).offsets == 5
    assert lake.audit().is_clean


def test_ctrl_c_ends_an_ingest_and_leaves_nothing_to_mend(lake: Lake, scaled: Callable[[int, int], int]) -> None:
    if not scaled(0, 1):
        pytest.skip("starts a second Spark: make soak")
    lake.produce(10)
    command = [sys.executable, "-m", "klamm", "lake", "ingest", "--bootstrap-server", lake.bootstrap]
    command += ["--topics", lake.topic, "--lake", str(lake.path), "--trigger", "1s", "--master", "local[1]"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        log = DeltaLog(LocalDirectory(lake.path / lake.topic))
        wait_until(lambda: running.poll() is not None or ((state := log.state()) is not None and state.ends == {0: 10}))
        running.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = running.communicate(timeout=WAIT_SECONDS)
        assert time.monotonic() - began < 30
    assert (running.returncode, err) == (128 + signal.SIGINT, "")
    lake.produce(5)
    assert lake.ingest_cleanly(take_over=True).offsets == 5
    assert lake.audit().is_clean


def test_hole_6_an_impossible_timestamp_becomes_a_dead_letter(lake: Lake) -> None:
    lake.produce(10)
    lake.produce(1, timestamp=NANOSECONDS)
    lake.produce(10)
    lake.produce(1, timestamp=2**63 - 1)
    lake.produce(10)
    report = lake.ingest_cleanly()
    assert (report.offsets, report.dead_letters) == (32, 2)
    errors = {row["offset"]: row for row in lake.rows("offset", "timestamp", "value", "error") if row["error"]}
    assert {offset: row["error"] for offset, row in errors.items()} == {
        10: f"impossible timestamp: {NANOSECONDS} ms",
        21: f"impossible timestamp: {2**63 - 1} ms",
    }
    assert errors[10]["timestamp"] is None
    assert errors[10]["value"].endswith(b"-0")
    found = lake.audit()
    assert (found.findings, found.rows) == ([], 32)
    assert lake.state().dead_letters == 2

    lake.produce(2, timestamp=NANOSECONDS)
    lake.produce(1)
    (report,) = lake.ingest(max_dead_letters=1)
    assert report.failure is not None
    assert "2 dead letters in this run, more than the 1 allowed" in report.failure
    assert lake.state().dead_letters == 4, "they are in the table all the same"


def test_holes_7_and_8_a_bad_topic_neither_fences_nor_stops_a_good_one(lake: Lake) -> None:
    good, bad = lake.topic, lake.create(f"{lake.topic}-bad")
    for topic in (good, bad):
        lake.produce(100, topic)
    reports = lake.ingest(
        good, bad, max_offsets_per_trigger=50, at_point=once("after-commit", lambda: lake.recreate(10, bad), bad)
    )
    assert [bool(report.failure) for report in reports] == [False, True]
    assert "recreated" in str(reports[1].failure)
    assert reports[0].offsets == 100

    epoch = lake.state(good).epoch
    with pytest.raises(LakeRefusal, match="recreated"):
        lake.ingest(good, bad)
    assert lake.state(good).epoch == epoch, "the start was refused, so nothing was claimed"


def test_hole_9_what_waits_behind_an_open_transaction_is_told(lake: Lake) -> None:
    lake.produce(10)
    settings = {"bootstrap.servers": lake.bootstrap, "transactional.id": lake.topic}
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})  # it must stay open on a slow machine
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(lake.topic, b"open", partition=0)
    assert producer.flush(60) == 0
    lake.produce(20)
    report = lake.ingest_cleanly()
    assert (report.offsets, report.waiting) == (10, 21)
    assert "21 offsets wait behind an open transaction" in report.line()
    producer.commit_transaction(60)


def test_hole_10_the_gaps_of_many_transactions_cost_a_few_fetches(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer({"bootstrap.servers": lake.bootstrap, "transactional.id": lake.topic, "linger.ms": 0})
    producer.init_transactions(60)
    for i in range(30):
        producer.begin_transaction()
        producer.produce(lake.topic, b"%d" % i, partition=0)
        assert producer.flush(60) == 0
        (producer.abort_transaction if i % 3 == 0 else producer.commit_transaction)(60)
    lake.ingest_cleanly()
    fetches: list[int] = []
    fetch = KafkaTopics._fetch

    def counted(self: KafkaTopics, name: Any, offset: int) -> Any:
        fetches.append(offset)
        return fetch(self, name, offset)

    monkeypatch.setattr(KafkaTopics, "_fetch", counted)
    found = lake.audit()
    assert found.findings == []
    assert len(found.explained) >= 30
    assert len(fetches) <= 3


def test_hole_11_rows_changed_by_another_program_stop_the_ingest(lake: Lake) -> None:
    lake.produce(10)
    lake.ingest_cleanly()
    lake.table().delete("offset = 3")
    version = lake.table().version()
    lake.produce(1)
    with pytest.raises(LakeRefusal, match=rf"in version {version} \(DELETE\).*--accept-version {version}"):
        lake.ingest()
    assert lake.ingest_cleanly(accept_version=version).offsets == 1
    assert kinds(lake.audit()) == {"foreign-commit": 1, "gap": 1}


def test_edited_rows_and_a_table_of_something_else_are_found(lake: Lake) -> None:
    lake.produce(3)
    lake.ingest_cleanly()
    lake.table().update({"value": "X'00'"}, predicate="offset = 1")
    assert kinds(lake.audit()) == {"foreign-commit": 1, "content": 1}
    other = lake.create(f"{lake.topic}-other")
    lake.spark.sql("SELECT 1 AS n").write.format("delta").save(str(lake.path / other))
    with pytest.raises(LakeRefusal, match="another program changed rows"):
        lake.ingest(other)


def test_a_table_of_an_earlier_klamm_is_recognised_by_its_newest_rows(lake: Lake) -> None:
    """Its commits have no anchors, and its columns no incarnation and no error."""
    lake.produce(20)
    lake.ingest_cleanly()
    log = lake.path / lake.topic / "_delta_log"
    for commit in DeltaLog(LocalDirectory(log.parent)).commits():
        path = log / f"{commit.version:020d}.json"
        lake_commit = commit.lake
        if lake_commit is not None:
            bare = replace(lake_commit, anchors={}, origins={})
            escaped = commit.user_metadata.replace('"', '\\"') if commit.user_metadata else ""
            path.write_text(path.read_text().replace(escaped, bare.to_json().replace('"', '\\"')))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    assert not lake.state().anchors
    lake.produce(1)
    assert lake.ingest_cleanly().offsets == 1
    assert lake.state().anchors[0].offset == 20

    lake.recreate(40)
    with pytest.raises(LakeRefusal, match="recreated"):
        lake.ingest()


def test_the_consumer_group_shows_the_position(lake: Lake) -> None:
    lake.produce(10)
    report = lake.ingest_cleanly(group="lake-group")
    assert report.group_failure is None
    with KafkaTopics(lake.bootstrap) as kafka:
        offsets = kafka._run(GroupAdmin(kafka._client.cluster).offsets("lake-group"))
    assert {name.partition: offset for name, offset in offsets.items() if name.topic == lake.topic} == {0: 10}


def test_undecodable_values_are_dead_letters_until_a_better_schema_replays_them(lake: Lake) -> None:
    values = [b'{"id": 1}', b'{"id": "x1"}', b"broken", b'{"id": 3, "more": 1}', b"y" * 200]
    producer = Producer({"bootstrap.servers": lake.bootstrap})
    for value in values:
        producer.produce(lake.topic, value, key=b"k%d" % len(value), partition=0)
    assert producer.flush(60) == 0
    report = lake.ingest_cleanly(decode=Decode(Format.JSON, "id long", max_value_bytes=100))
    assert report.dead_letters == 3
    rows = {row["offset"]: row for row in lake.rows("offset", "error", "data", "value")}
    assert [rows[offset]["error"] for offset in range(5)] == [
        *(None, "undecodable JSON", "undecodable JSON", None, "oversized: 200 bytes")
    ]
    assert [rows[offset]["data"] for offset in range(5)] == [{"id": 1}, None, None, {"id": 3}, None]
    assert [rows[offset]["value"] for offset in range(5)] == values

    lake.produce(1, timestamp=NANOSECONDS)
    lake.ingest_cleanly()
    table = TableMaintenance(lake.spark, LocalDirectory(lake.path), lake.topic)
    assert table.replay_timestamps().rows == 1
    assert table.forget(b"k6").rows == 1
    assert table.replay_values(Decode(Format.JSON, "id long")).rows == 0
    table.compact()
    rows = {row["offset"]: row for row in lake.rows("offset", "error", "timestamp")}
    assert sorted(rows) == [0, 1, 3, 4, 5]
    assert rows[5]["error"] is None
    assert rows[5]["timestamp"].year == 2025
    found = lake.audit()
    assert (found.findings, found.rows) == ([], 5)
    lake.produce(1)
    assert lake.ingest_cleanly().offsets == 1, "the ingest goes on after klamm's own maintenance"


def test_late_records_go_to_their_own_hour(lake: Lake) -> None:
    now = datetime.now(UTC)
    later, earlier = now - timedelta(hours=2), now - timedelta(hours=4)  # much older ones could expire meanwhile
    for hour in (later, earlier):
        lake.produce(3, timestamp=int(hour.timestamp() * 1000))
    lake.ingest_cleanly(partition_by=PartitionBy.HOUR)
    assert {(row["date"], row["hour"], row["offset"]) for row in lake.rows("date", "hour", "offset")} == {
        (hour.date(), hour.hour, offset)
        for hour, offsets in ((later, range(3)), (earlier, range(3, 6)))
        for offset in offsets
    }
    directories = {f"date={hour:%Y-%m-%d}/hour={hour.hour}" for hour in (later, earlier)}
    table = lake.path / lake.topic
    assert {str(path.relative_to(table)) for path in table.glob("date=*/*")} == directories
    assert lake.audit().is_clean
    with pytest.raises(LakeRefusal, match="is partitioned by date,hour"):
        lake.ingest()


def test_hadoops_file_system_serves_as_the_local_one_does(lake: Lake) -> None:
    local, hadoop = LocalDirectory(lake.path), HadoopDirectory(lake.spark, f"file://{lake.path}")
    assert (local.names(), hadoop.names()) == ([], [])
    hadoop.child("a", "b").make()
    local.child("a", "c").path.write_text("text")
    for directory in (local, hadoop):
        assert sorted(directory.child("a").names()) == ["b", "c"]
        assert (directory.child("a", "c").exists(), directory.child("a", "x").exists()) == (True, False)
        assert directory.child("a", "c").read_text() == "text"
        with pytest.raises(OSError, match="x"):
            directory.child("a", "x").read_text()
    hadoop.child("a").remove()
    assert local.names() == []


def test_an_older_writer_cannot_add_a_row_once_the_table_is_claimed(lake_spark: SparkSession, tmp_path: Path) -> None:
    """Both safeguards alone: Delta skips a stale transaction version, and the read-back notices it."""
    options = IngestOptions("127.0.0.1:9", ["t"], str(tmp_path))
    lake, kafka = LocalDirectory(tmp_path), KafkaTopics("127.0.0.1:9")
    rows = lake_spark.sql(
        "SELECT 't' AS topic, 0 AS `partition`, 0L AS `offset`, current_timestamp() AS timestamp, "
        "0 AS timestamp_type, X'00' AS key, X'00' AS value, "
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers, CAST(NULL AS STRING) AS error"
    )
    older, newer = (TopicIngest(lake_spark, options, "t", lake, kafka) for _ in range(2))
    older.claim()
    older._commit(rows, _batch(older, 1, OffsetRange(0, 1)))
    newer.claim()
    assert dict(newer.report.ends) == {0: 1}

    with pytest.raises(LakeError, match="took over"):
        older._commit(rows, _batch(older, 2, OffsetRange(1, 2)))
    assert lake_spark.read.format("delta").load(str(tmp_path / "t")).count() == 1
    state = DeltaLog(lake.child("t")).state()
    assert state is not None
    assert (state.epoch, dict(state.ends)) == (2, {0: 1})

    other = TopicIngest(lake_spark, replace(options, name="other"), "t", lake, kafka)
    with pytest.raises(LakeError, match="belongs to the ingest klamm:main:t"):
        other.check()


def _batch(ingest: TopicIngest, seq: int, planned: OffsetRange) -> LakeCommit:
    ranges, ends = {0: planned}, {0: planned.end}
    return LakeCommit(ingest._app, "t", ingest._epoch, seq, ingest._writer, seq - 1, ranges, ends)
