"""The stores and the Spark cluster of the lake's tests, started as real servers on free ports of 127.0.0.1.

A local directory, an HDFS mini cluster with two data nodes, an S3 server (moto), and a standalone Spark cluster of two
workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from klamm.pipelines.jars import cache_directory, require_spark, spark_jars
from klamm.pipelines.maven import Artifact, cached_jar

BUCKET = "lake"
READY_SECONDS_MAX = 120
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
HOOK_SOURCE = Path(__file__).with_name("KillingLogStore.java")
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


@dataclass
class Store:
    lake: str
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)


@contextmanager
def process(command: list[str], log: Path, mark: str) -> Iterator[str]:
    """Run it until the block ends; yields the line of its output that has the mark."""
    env = {**os.environ, **QUICK_JVM, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("wb") as output:  # a pipe would fill up, because nothing reads it later
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, env=env
        )
    try:
        yield _wait_for_line(child, log, mark)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def _wait_for_line(child: subprocess.Popen[bytes], log: Path, mark: str) -> str:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        ended = child.poll() is not None
        *complete, _ = log.read_text(errors="replace").split("\n")
        for line in complete:
            if mark in line:
                return line.strip()
        said = [line for line in complete if not line.startswith("\t")]
        assert not ended and time.monotonic() < deadline, f"not ready: {said[-10:]}"
        time.sleep(0.05)  # a file has no event to await


@contextmanager
def mini_hdfs(path: Path) -> Iterator[str]:
    """The URI of a name node with two data nodes."""
    (path / "Mini.java").write_text(MINI)
    directory = cache_directory().parent / "hdfs-3.4.1"
    jars = [*(cached_jar(jar, directory) for jar in HDFS_JARS), *(require_spark() / "jars").glob("hadoop-client-*.jar")]
    jars += [jar for name in ("*slf4j*.jar", "log4j-*.jar") for jar in (require_spark() / "jars").glob(name)]
    command = ["java", "-cp", os.pathsep.join(map(str, jars)), str(path / "Mini.java"), str(path / "data")]
    with process(command, path / "hdfs.log", "uri hdfs:") as line:
        yield line.removeprefix("uri ")


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Spark's settings for an S3 server with the bucket BUCKET."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket=BUCKET)
        settings = {
            "endpoint": endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "x",
            "secret.key": "x",
        }
        yield {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
    finally:
        server.stop()


@contextmanager
def standalone_spark(path: Path) -> Iterator[str]:
    """The URI of a Spark master with two workers of one core each."""
    spark_class = str(require_spark() / "bin" / "spark-class")
    with ExitStack() as stack:
        words = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = [spark_class, "org.apache.spark.deploy.master.Master", *words]
        line = stack.enter_context(process(master, path / "master.log", "Starting Spark master at "))
        uri = line.rpartition("Starting Spark master at ")[2].split()[0]
        for number in range(2):
            work = ["--work-dir", str(path / f"worker-{number}"), "--cores", "1", "--memory", "1g"]
            worker = [spark_class, "org.apache.spark.deploy.worker.Worker", *words, *work, uri]
            log = path / f"worker-{number}.log"
            stack.enter_context(process(worker, log, "Successfully registered with master"))
        yield uri


def killing_jar(path: Path) -> Path:
    """KillingLogStore.java, compiled into a jar."""
    classes = path / "classes"
    needed = [*spark_jars(), *(require_spark() / "jars").glob("hadoop-client-api-*.jar")]
    compiler = ["javac", "-d", str(classes), "-cp", os.pathsep.join(map(str, needed)), str(HOOK_SOURCE)]
    subprocess.run(compiler, check=True)
    jar = path / "killing-log-store.jar"
    subprocess.run(["jar", "--create", "--file", str(jar), "-C", str(classes), "."], check=True)
    return jar
