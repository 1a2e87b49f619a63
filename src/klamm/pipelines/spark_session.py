"""One quiet Spark session: jars from the cache, settings for a streaming ingest, everything temporary in one place.

The JVM writes its log to a file, not to the user's terminal. Its scratch directory carries our process id, so that what
a killed driver left behind is removed by the next one.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.jars import require_spark, spark_jars
from klamm.pipelines.lake_state import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
_END_SECONDS_MAX = 30
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.parquet.compression.codec": "zstd",
}


def is_local(master: str) -> bool:
    """
    >>> is_local("local[*]"), is_local("local"), is_local("local-cluster[2,1,1024]"), is_local("spark://h:7077")
    (True, True, False, False)
    """
    return master == "local" or master.startswith("local[")


@contextmanager
def spark_session(master: str, application: str) -> Iterator[SparkSession]:
    """A session that ends, with its JVM and its scratch directory, when the block does."""
    require_spark()
    jars = spark_jars()
    scratch = _fresh_scratch()
    try:
        with _jvm_that_ends():
            session = _start(master, application, jars, scratch)
            yield session
            session.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # not the last one
            scratch.parent.rmdir()


def _start(master: str, application: str, jars: list[Path], scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        quiet = logging.getLogger(name)  # what they would print is in the exception that reaches us
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(application)
    settings = {
        **_SETTINGS,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {
            "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    else:
        settings["spark.jars"] = ",".join(map(str, jars))  # ships them: on a class path executors would not see them
    for key, value in settings.items():
        builder = builder.config(key, value)
    log_file = scratch / "driver.log"
    try:
        # the JVM's working directory too: it drops a directory `artifacts` there
        with _standard_error_to(log_file), chdir(scratch):
            on_interrupt = signal.getsignal(signal.SIGINT)
            session = builder.getOrCreate()
            signal.signal(signal.SIGINT, on_interrupt)  # Spark's own handler talks to the JVM out of turn
            return session
    except spark_errors() as e:
        # a JVM that ended before it could answer has said why only in its log
        reason = _reason(log_file) if "JAVA_GATEWAY_EXITED" in str(e) else one_line(e)
        raise LakeError(f"Spark did not start on {master}: {reason}") from e


def _reason(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines() if log_file.exists() else []
    telling = [line for line in lines if "rror" in line or "nrecognized" in line]
    return (telling or lines or ["the JVM ended without a word"])[0].strip()[:300]


@contextmanager
def _jvm_that_ends() -> Iterator[None]:
    """Ends the JVM without asking it: a signal may have cut a conversation with it in the middle.

    It ends when its standard input does. What it was writing is committed or is not; both are well.
    """
    from pyspark import SparkContext

    try:
        yield
    finally:
        gateway = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if gateway is not None and process is not None:
            process.stdin.close()
            try:
                process.wait(_END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            gateway.shutdown()  # our own threads that served it
            SparkContext._gateway = SparkContext._jvm = None  # the next session starts a JVM of its own


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """The JVM inherits our standard error when it is started: give it a file for that moment."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _fresh_scratch() -> Path:
    """`<tmp>/klamm-spark-<uid>/<pid>`; directories of processes that are gone are removed."""
    base = Path(tempfile.gettempdir()) / f"klamm-spark-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    for old in base.iterdir():
        if old.name.isdigit() and not Path("/proc", old.name).exists():
            shutil.rmtree(old, ignore_errors=True)
    scratch = base / str(os.getpid())
    scratch.mkdir(exist_ok=True)
    return scratch


def spark_errors() -> tuple[type[Exception], ...]:
    """What a call into Spark may raise: its own errors, and Java exceptions that PySpark does not know."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def one_line(error: BaseException) -> str:
    """The sentence of a Spark error, without plan, state and stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for mark in ("Reason:", ": "):  # a streaming query's cause; the exception of a failed call into Java
        for line in lines:
            if line.startswith(mark):
                return line.removeprefix(": ")[:300]
    return lines[0][:300] if lines else type(error).__name__
