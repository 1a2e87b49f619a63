"""The same exactly-once proof on each store: drivers killed at named points, two writers at once, an independent count.

The stores are real: a local directory, an HDFS mini cluster with two data nodes, an S3 server (moto), and the masters
`local[2]` and a standalone cluster of two workers. Each kill starts a Spark of its own, so all of this is for `make
soak`, and the jars of HDFS and S3 are fetched then (600 MB).
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from tests.interop.lake_driver import FILES_SEEN

from klamm.pipelines import s3
from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.ingest import ingest_topics
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.jars import cache_directory, require_spark
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_location import for_lake, open_lake
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.maven import Artifact, cached_jar
from klamm.pipelines.spark_session import SparkOptions, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(3600),
]
GIVEN = os.environ.get("KLAMM_TEST_BOOTSTRAP")
STORES = os.environ.get("KLAMM_TEST_STORES", "local hdfs s3a hdfs-cluster").split()
RECORDS, BATCH = 600, 100
WAIT_SECONDS = 300
POINTS = ("before-write", FILES_SEEN, "after-commit", "after-group-commit")
DRIVER = Path(__file__).with_name("lake_driver.py")
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
HDFS_JARS = (
    Artifact("org.apache.hadoop", "hadoop-client-minicluster", "3.4.1"),
    Artifact("org.mockito", "mockito-core", "4.11.0"),
    Artifact("junit", "junit", "4.13.2"),
)
MINI = """
import org.apache.hadoop.hdfs.*;
public class Mini {
    public static void main(String[] words) throws Exception {
        HdfsConfiguration c = new HdfsConfiguration();
        c.set("hdfs.minidfs.basedir", words[0]);
        c.set("dfs.namenode.http-address", "127.0.0.1:0");
        for (String name : new String[] {"address", "http.address", "ipc.address"})
            c.set("dfs.datanode." + name, "127.0.0.1:0");
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(c).numDataNodes(2).nameNodePort(0)
            .checkDataNodeAddrConfig(true).build();
        cluster.waitActive();
        System.out.println("uri " + cluster.getURI());
        System.in.read();
        cluster.shutdown();
    }
}
"""


@pytest.fixture(scope="module", autouse=True)
def only_in_soak(scaled: Callable[[int, int], int]) -> None:
    if not scaled(0, 1):
        pytest.skip("each kill starts a Spark: make soak")


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    return GIVEN or str(request.getfixturevalue("klamm_module_cluster").bootstrap)


@dataclass
class Store:
    lake: str
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)


@contextmanager
def process(command: list[str], mark: str, **options: Any) -> Iterator[str]:
    """Run it until the block ends; yields the line of its output that has the mark."""
    env = {**os.environ, **QUICK_JVM}
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env, **options
    )
    try:
        assert child.stdout is not None
        yield next(line for line in child.stdout if mark in line).strip()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("hdfs")
    (path / "Mini.java").write_text(MINI)
    directory = cache_directory().parent / "hdfs-3.4.1"
    jars = [*(cached_jar(jar, directory) for jar in HDFS_JARS), *(require_spark() / "jars").glob("hadoop-client-*.jar")]
    jars += (require_spark() / "jars").glob("*slf4j*.jar")
    command = ["java", "-cp", os.pathsep.join(map(str, jars)), str(path / "Mini.java"), str(path / "data")]
    with process(command, "uri ", stderr=subprocess.DEVNULL, cwd=path) as line:
        yield line.removeprefix("uri ")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[dict[str, str]]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    ).create_bucket(Bucket="lake")
    settings = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": "x",
        "secret.key": "x",
    }
    yield {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    server.stop()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark master and two workers, as processes of this machine."""
    spark_class = str(require_spark() / "bin" / "spark-class")
    env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        words = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = [spark_class, "org.apache.spark.deploy.master.Master", *words]
        line = stack.enter_context(process(master, "Starting Spark master at ", stderr=subprocess.STDOUT))
        uri = line.rpartition("Starting Spark master at ")[2].split()[0]
        for _ in range(2):
            work = ["--work-dir", str(tmp_path_factory.mktemp("worker")), "--cores", "1", "--memory", "1g"]
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", *words, *work, uri]
            stack.enter_context(process(worker, "Successfully registered with master", stderr=subprocess.STDOUT))
        yield uri


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = f"lake-{uuid.uuid4().hex[:6]}"
    match request.param:
        case "hdfs":
            return Store(f"{request.getfixturevalue('hdfs')}/{name}")
        case "hdfs-cluster":
            return Store(f"{request.getfixturevalue('hdfs')}/{name}", request.getfixturevalue("standalone"))
        case "s3a":
            return Store(f"s3a://lake/{name}", conf=request.getfixturevalue("s3_server"))
        case _:
            return Store(str(tmp_path / "lake"))


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The auditor, which can read all stores."""
    options = SparkOptions("local[2]")
    if "s3a" in STORES:
        options = for_lake("s3a://lake", SparkOptions("local[2]", conf=request.getfixturevalue("s3_server")))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JVM.items():
            patch.setenv(name, value)
        with spark_session(options, "stores") as session:
            yield session
        gc.collect()


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"lake-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive the future
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for i in range(RECORDS):
        producer.produce(name, b"v%d" % i, partition=i % 2)
    assert producer.flush(60) == 0
    return name


def driver(bootstrap: str, topic: str, store: Store, **changes: Any) -> subprocess.Popen[str]:
    given = {
        "bootstrap_server": bootstrap,
        "topics": [topic],
        "lake": store.lake,
        "group": topic,
        "max_offsets_per_trigger": BATCH,
        "spark": {"master": store.master, "conf": store.conf},
        **changes,
    }
    return subprocess.Popen(
        [sys.executable, str(DRIVER), json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **QUICK_JVM, "PYTHONPATH": str(DRIVER.parents[2])},
    )


def independent_count(spark: SparkSession, lake: str, topic: str, copy: Path) -> Counter[tuple[int, int]]:
    """By delta-rs, from a copy of the table."""
    directory = HadoopDirectory(spark, f"{lake}/{topic}" if "://" in lake else f"file://{lake}/{topic}")
    jvm: Any = spark._jvm
    directory._file_system().copyToLocalFile(
        False, directory._path, jvm.org.apache.hadoop.fs.Path(f"file://{copy}"), True
    )
    rows = DeltaTable(str(copy)).to_pyarrow_table(columns=["partition", "offset"])
    return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def assert_each_offset_once(spark: SparkSession, bootstrap: str, topic: str, store: Store, copy: Path) -> None:
    with KafkaTopics(bootstrap) as kafka:
        report = audit_table(spark, open_lake(spark, store.lake).child(topic), topic, kafka)
    assert (report.findings, report.rows) == ([], RECORDS)
    expected = Counter((p, offset) for p in range(2) for offset in range(RECORDS // 2))
    assert independent_count(spark, store.lake, topic, copy) == expected


def test_drivers_killed_at_named_points_leave_each_offset_once(
    spark: SparkSession, bootstrap: str, topic: str, store: Store, tmp_path: Path, scaled: Callable[[int, int], int]
) -> None:
    points = POINTS if "://" not in store.lake else tuple(point for point in POINTS if point != FILES_SEEN)
    for point in points:
        killed = driver(bootstrap, topic, store, point=point, times=2)
        out, err = killed.communicate(timeout=WAIT_SECONDS)
        assert killed.returncode == -signal.SIGKILL, (point, out, err)
    options = IngestOptions(bootstrap, [topic], store.lake, spark=SparkOptions(store.master, conf=store.conf))
    (report,) = ingest_topics(spark, options)
    assert report.failure is None
    assert 0 < report.offsets < RECORDS
    assert_each_offset_once(spark, bootstrap, topic, store, tmp_path / "copy")


def test_two_writers_at_once_never_both_win(
    spark: SparkSession, bootstrap: str, topic: str, store: Store, tmp_path: Path
) -> None:
    writers = [driver(bootstrap, topic, store) for _ in range(2)]
    results = [(writer.communicate(timeout=WAIT_SECONDS), writer.returncode) for writer in writers]
    assert 0 in [code for _, code in results], results
    assert_each_offset_once(spark, bootstrap, topic, store, tmp_path / "copy")


@pytest.mark.skipif("s3a" not in STORES, reason="needs the S3 server")
def test_a_server_that_ignores_the_condition_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.probe(spark, "s3a://lake/probed")
    with pytest.raises(LakeError, match="cannot write to s3a://no-such-bucket"):
        s3.probe(spark, "s3a://no-such-bucket/probed")

    def without_the_condition(self: Any, environ: Any, start: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return serve(self, environ, start)

    serve = DomainDispatcherApplication.__call__
    monkeypatch.setattr(DomainDispatcherApplication, "__call__", without_the_condition)
    with pytest.raises(LakeError, match="ignores If-None-Match"):
        s3.probe(spark, "s3a://lake/probed")
