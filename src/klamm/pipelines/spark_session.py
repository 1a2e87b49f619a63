"""One quiet Spark session: jars from the cache, settings for a streaming ingest, everything temporary in one place.

The JVM writes its log to a file, not to the user's terminal. Its scratch directory carries our process id, so that what
a killed driver left behind is removed by the next one.
"""

from __future__ import annotations

import logging
import os
import shutil
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
        session = _start(master, application, jars, scratch)
        try:
            yield session
        finally:
            _stop(session)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # not the last one
            scratch.parent.rmdir()


def _start(master: str, application: str, jars: list[Path], scratch: Path) -> SparkSession:
    from pyspark.errors import PySparkException
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
            return builder.getOrCreate()
    except PySparkException as e:
        lines = log_file.read_text(errors="replace").strip().splitlines()
        raise LakeError(f"Spark did not start on {master}: {lines[-1].strip() if lines else e}") from e


def _stop(session: SparkSession) -> None:
    """Ends the session and waits for its JVM, which would otherwise outlive us for a moment."""
    gateway = session.sparkContext._gateway
    session.stop()
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()  # the JVM ends when its standard input does
        process.wait()


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
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("Reason:"):
            return line[:300]
    return lines[0][:300] if lines else type(error).__name__
