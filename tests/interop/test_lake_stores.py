"""The same exactly-once proof on each store: drivers killed or suspended at named points, two writers at once.

Each kill starts a Spark of its own, so all of this is for `make soak`, and the jars of HDFS are fetched then.
`KLAMM_TEST_STORES` and `KLAMM_TEST_POINTS` name some of the stores and points, `KLAMM_TEST_KILLS` the kills at each
point. `test_lake_s3.py` ingests into S3 in every run.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.interop.lake_driver import BEFORE_COMMIT
from tests.interop.lake_stores import BUCKET, QUICK_JVM, Store, killing_jar, mini_hdfs, standalone_spark

from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_location import open_lake
from klamm.testing.cluster import KlammCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(7200),
]
STORES = os.environ.get("KLAMM_TEST_STORES", "local hdfs s3a local-cluster hdfs-cluster s3a-cluster").split()
"""With `-cluster`, drivers use a standalone Spark cluster instead of local[2]."""
RECORDS, BATCH = 2400, 100
WAIT_SECONDS = 900
POINTS = os.environ.get("KLAMM_TEST_POINTS", f"before-write {BEFORE_COMMIT} after-commit after-group-commit").split()
KILLS = int(os.environ.get("KLAMM_TEST_KILLS", "3"))
"""At each point."""
DRIVER = Path(__file__).with_name("lake_driver.py")


@pytest.fixture(scope="module", autouse=True)
def only_in_soak(scaled: Callable[[int, int], int]) -> None:
    if not scaled(0, 1):
        pytest.skip("each of 72 kills starts a Spark, an hour in all: make soak")


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mini_hdfs(tmp_path_factory.mktemp("hdfs")) as uri:
        yield uri


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("standalone")) as uri:
        yield uri


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killing_jar(tmp_path_factory.mktemp("hook"))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = f"lake-{uuid.uuid4().hex[:6]}"
    place, _, cluster = request.param.partition("-")
    master = request.getfixturevalue("standalone") if cluster else "local[2]"
    match place:
        case "hdfs":
            return Store(f"{request.getfixturevalue('hdfs')}/{name}", master)
        case "s3a":
            return Store(f"s3a://{BUCKET}/{name}", master, request.getfixturevalue("s3_settings"))
        case _:
            return Store(str(tmp_path / "lake"), master)


@pytest.fixture
def topic(klamm_module_cluster: KlammCluster) -> str:
    name = f"lake-{uuid.uuid4().hex[:8]}"
    klamm_module_cluster.create_topic(name, partitions=2, replication_factor=3)
    produce(klamm_module_cluster, name)
    return name


def produce(cluster: KlammCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for i in range(RECORDS):
        producer.produce(topic, b"v%d" % i, partition=i % 2)
    assert producer.flush(60) == 0


class Drivers:
    """Ingests of one topic, each in a process group of its own."""

    def __init__(self, bootstrap: str, topic: str, store: Store) -> None:
        self._options = {
            "bootstrap_server": bootstrap,
            "topics": [topic],
            "lake": store.lake,
            "group": topic,
        }
        self._store = store
        self._started: list[subprocess.Popen[str]] = []

    def start(self, batch: int, conf: dict[str, str] | None = None, **changes: Any) -> subprocess.Popen[str]:
        """`conf`: settings of Spark beside those of the store."""
        spark = {"master": self._store.master, "conf": {**self._store.conf, **(conf or {})}}
        given = {**self._options, "max_offsets_per_trigger": batch, "spark": spark, **changes}
        started = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **QUICK_JVM},
        )
        self._started.append(started)
        return started

    def end(self) -> None:
        for started in self._started:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            started.communicate()


@pytest.fixture
def drivers(klamm_module_cluster: KlammCluster, topic: str, store: Store) -> Iterator[Drivers]:
    found = Drivers(klamm_module_cluster.bootstrap, topic, store)
    yield found
    found.end()


class Table:
    """The table of a topic, as the auditor and an independent reader see it."""

    def __init__(self, spark: SparkSession, cluster: KlammCluster, topic: str, store: Store) -> None:
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self._lake = store.lake

    def epoch(self) -> int:
        state = DeltaLog(open_lake(self._spark, self._lake).child(self._topic)).state()
        return state.epoch if state else 0

    def wait_for_epoch(self, epoch: int, running: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.epoch() < epoch:
            assert running.poll() is None and time.monotonic() < deadline, running.communicate()
            time.sleep(0.1)  # a store has no event to await

    def assert_each_offset_once(self, copy: Path, records: int = RECORDS) -> None:
        with KafkaTopics(self._cluster.bootstrap) as kafka:
            table = open_lake(self._spark, self._lake).child(self._topic)
            report = audit_table(self._spark, table, self._topic, kafka)
        assert (report.findings, report.rows) == ([], records)
        expected = Counter((p, offset) for p in range(2) for offset in range(records // 2))
        assert self._independent_count(copy) == expected

    def _independent_count(self, copy: Path) -> Counter[tuple[int, int]]:
        """By delta-rs, from a copy of the table."""
        uri = f"{self._lake}/{self._topic}"
        directory = HadoopDirectory(self._spark, uri if "://" in uri else f"file://{uri}")
        jvm: Any = self._spark._jvm
        target = jvm.org.apache.hadoop.fs.Path(f"file://{copy}")
        directory._file_system().copyToLocalFile(False, directory._path, target, True)
        rows = DeltaTable(str(copy)).to_pyarrow_table(columns=["partition", "offset"])
        return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


@pytest.fixture
def table(lake_spark: SparkSession, klamm_module_cluster: KlammCluster, topic: str, store: Store) -> Table:
    return Table(lake_spark, klamm_module_cluster, topic, store)


def test_drivers_killed_at_named_points_leave_each_offset_once(
    klamm_module_cluster: KlammCluster, drivers: Drivers, table: Table, topic: str, hook: Path, tmp_path: Path
) -> None:
    """In each round, the leader of a partition is killed too while the ingest runs."""
    cluster = klamm_module_cluster
    for number in range(KILLS * len(POINTS)):
        point = POINTS[number % len(POINTS)]
        running = drivers.start(BATCH, point=point, times=2, hook=str(hook))
        leader = None
        if number % len(POINTS) == number // len(POINTS):
            table.wait_for_epoch(number + 1, running)
            leader = cluster.leader_of(topic, number % 2)
            cluster.kill(leader)
        out, err = running.communicate(timeout=WAIT_SECONDS)
        assert running.returncode == -signal.SIGKILL, (number, point, out, err)
        if leader is not None:
            cluster.start(leader)
            cluster.wait_until_healthy()
    last = drivers.start(RECORDS)
    out, err = last.communicate(timeout=WAIT_SECONDS)
    assert last.returncode == 0, (out, err)
    (report,) = json.loads(out)
    assert 0 < report["offsets"] < RECORDS
    assert report["epoch"] == KILLS * len(POINTS) + 1
    table.assert_each_offset_once(tmp_path / "copy")


def test_two_writers_at_once_never_both_win(
    klamm_module_cluster: KlammCluster, drivers: Drivers, table: Table, topic: str, tmp_path: Path
) -> None:
    """They race for the creation of the table first, then for the claim of one that exists."""
    for number in range(2):
        one_worker = {"spark.cores.max": "1"}  # else the first writer has the whole Spark cluster to itself
        writers = [drivers.start(RECORDS // 6, one_worker) for _ in range(2)]
        results = [(writer.communicate(timeout=WAIT_SECONDS), writer.returncode) for writer in writers]
        assert 0 in [code for _, code in results], results
        assert {0, 1} >= {code for _, code in results}, results
        table.assert_each_offset_once(tmp_path / f"copy-{number}", RECORDS * (number + 1))
        if number == 0:
            produce(klamm_module_cluster, topic)


def test_a_driver_suspended_before_its_commit_loses_to_its_successor(
    drivers: Drivers, table: Table, store: Store, hook: Path, tmp_path: Path
) -> None:
    """It wakes up with files that are written and a commit that comes too late. A directory has a lock against that."""
    if "://" not in store.lake:
        pytest.skip("test_lake_holes.py: a stalled writer keeps out its successor")
    older = drivers.start(BATCH, point=BEFORE_COMMIT, times=2, hook=str(hook), signal="STOP")
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_stopped(older.pid):
        assert older.poll() is None and time.monotonic() < deadline, older.communicate()
        time.sleep(0.1)  # a state of a process has no event to await
    newer = drivers.start(RECORDS)
    out, err = newer.communicate(timeout=WAIT_SECONDS)
    assert newer.returncode == 0, (out, err)
    assert json.loads(out)[0]["offsets"] == RECORDS - BATCH
    os.killpg(older.pid, signal.SIGCONT)
    out, err = older.communicate(timeout=WAIT_SECONDS)
    assert older.returncode == 1, (out, err)
    assert "another ingest" in json.loads(out)[0]["failure"]
    table.assert_each_offset_once(tmp_path / "copy")


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
