"""A topic is ingested into a Delta table while the driver is killed by `kill -9`; the audit is clean and finds planted
faults.

`KLAMM_SCALE=full` takes 200,000 records, and Apache Kafka besides klamm. `KLAMM_TEST_BOOTSTRAP` names a running cluster
to use instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake

from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

FULL = os.environ.get("KLAMM_SCALE") == "full"
RECORDS = 200_000 if FULL else 6_000
PARTITIONS = 3
BATCHES = 12
WAIT_SECONDS = 250
GIVEN = os.environ.get("KLAMM_TEST_BOOTSTRAP")
CLUSTERS = [GIVEN] if GIVEN else ["klamm", "apache-kafka"] if FULL else ["klamm"]
COLUMNS = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
COLUMNS += ["incarnation", "error"]


@pytest.fixture(params=CLUSTERS)
async def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a cluster: klamm's, Apache Kafka's, or the one that the caller names."""
    match request.param:
        case "klamm":
            yield request.getfixturevalue("klamm_cluster").bootstrap
        case "apache-kafka":
            async with EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False).running() as zookeeper:
                broker = ApacheKafkaBroker("2.5.1", 1, zookeeper.connect_string, tmp_path / "broker")
                async with MixedCluster([broker]).running() as cluster:
                    yield cluster.bootstrap
        case given:
            yield given


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic with RECORDS records, spread evenly, each with a key and a header."""
    name = f"lake-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for i in range(RECORDS):
        producer.produce(name, key=b"k%d" % i, value=b"v%d" % i, partition=i % PARTITIONS, headers=[("n", b"%d" % i)])
        producer.poll(0)
        if i % 50_000 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    return name


def lake_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "klamm", "lake", *map(str, arguments)]


@contextmanager
def lake_process(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run the command in its own process group, which ends with the block."""
    process = subprocess.Popen(
        lake_command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # only the first compiler, because these runs are short
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )
    try:
        yield process
    finally:
        kill_group(process)
        process.communicate()


def kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has already ended, and its JVM with it


def run_lake(*arguments: str | Path) -> tuple[int, dict[str, object], str]:
    with lake_process(*arguments, "--json") as process:
        out, err = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, json.loads(out)["topics"][0] if out else {}, err


def wait_for_commit(process: subprocess.Popen[str], log: DeltaLog, seq: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        state = log.state()
        if state is not None and state.seq >= seq:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)  # a file has no event to await
    raise AssertionError(f"no commit {seq} within {WAIT_SECONDS} s")


def offsets_by_deltalake(table: Path) -> Counter[tuple[int, int]]:
    """An independent reader: how often each (partition, offset) is in the table."""
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "offset"])
    return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def plant_gap_and_duplicate(table: Path) -> None:
    DeltaTable(str(table)).delete("partition = 1 AND offset = 17")
    rows = DeltaTable(str(table)).to_pyarrow_table(filters=[("partition", "=", 2), ("offset", "=", 5)])
    write_deltalake(str(table), pyarrow.table(rows), mode="append")


@pytest.mark.timeout(900)  # Spark starts four times
def test_a_killed_ingest_resumes_exactly_once_and_the_audit_proves_it(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    table = lake / topic
    ingest = ("ingest", "--bootstrap-server", bootstrap, "--topics", topic, "--lake", lake)
    small = ("--max-offsets-per-trigger", str(RECORDS // BATCHES))

    with lake_process(*ingest, *small) as process:
        wait_for_commit(process, DeltaLog(LocalDirectory(table)), seq=3)
        kill_group(process)
    killed = DeltaLog(LocalDirectory(table)).state()
    assert killed is not None
    assert 0 < sum(killed.ends.values()) < RECORDS, "the kill must fall in mid-stream"

    code, report, err = run_lake(*ingest, *small)
    assert (code, err) == (0, "")
    assert report["epoch"] == 2
    assert report["offsets"] == RECORDS - sum(killed.ends.values())

    audit = ("audit", "--lake", lake, "--topics", topic, "--bootstrap-server", bootstrap)
    code, report, err = run_lake(*audit)
    assert (code, report["findings"], report["rows"], err) == (0, [], RECORDS, "")

    expected = {(p, offset) for p in range(PARTITIONS) for offset in range(len(range(p, RECORDS, PARTITIONS)))}
    assert offsets_by_deltalake(table) == Counter(expected)
    row = DeltaTable(str(table)).to_pyarrow_table(filters=[("partition", "=", 1), ("offset", "=", 17)]).to_pylist()[0]
    assert list(row) == COLUMNS
    number = 17 * PARTITIONS + 1
    assert (row["key"], row["value"]) == (b"k%d" % number, b"v%d" % number)
    assert row["headers"] == [{"key": "n", "value": b"%d" % number}]

    plant_gap_and_duplicate(table)
    code, report, _ = run_lake(*audit)
    found = {(f["kind"], f["partition"], f["start"], f["end"]) for f in report["findings"]}  # type: ignore[attr-defined]
    assert code == 1
    assert ("gap", 1, 17, 18) in found
    assert ("duplicate", 2, 5, 6) in found
    assert {kind for kind, *_ in found} == {"gap", "duplicate", "foreign-commit"}
