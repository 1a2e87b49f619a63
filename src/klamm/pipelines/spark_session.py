"""A quiet Spark session: jars from the cache, settings for a streaming ingest, temporary files in one place.

The JVM logs to a file, not to the user's terminal. Its scratch directory is named after this process, so that the next
session can remove what a killed driver left behind.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.pipelines.class_archive import archive_options, archive_path, java_build
from klamm.pipelines.jars import require_spark, spark_jars
from klamm.pipelines.lake_state import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_END_SECONDS_MAX = 8
_DUMP_SECONDS_MAX = 240
"""A JVM that writes a class archive when it ends needs longer."""
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


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Where Spark runs and with which means. `conf` wins over what klamm sets."""

    master: str = "local[*]"
    driver_memory: str = "1g"
    executor_memory: str | None = None
    executor_cores: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[Path] = ()
    """Further jars."""
    quick: bool = False
    """Only the JVM's first compiler: sooner warm, slower in the end."""
    archive_to: Path | None = None
    """Where to write a class archive when the JVM ends."""


def is_local(master: str) -> bool:
    """
    >>> is_local("local[*]"), is_local("local"), is_local("local-cluster[2,1,1024]"), is_local("spark://h:7077")
    (True, True, False, False)
    """
    return master == "local" or master.startswith("local[")


@contextmanager
def spark_session(options: SparkOptions, application: str) -> Iterator[SparkSession]:
    """Ends the session, its JVM and its scratch directory with the block."""
    require_spark()
    jars = spark_jars()
    scratch = _fresh_scratch()
    try:
        with _jvm_that_ends(_END_SECONDS_MAX if options.archive_to is None else _DUMP_SECONDS_MAX):
            session = _start(options, application, [*jars, *options.packages], scratch)
            yield session
            session.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # other sessions still use it
            scratch.parent.rmdir()


def _start(options: SparkOptions, application: str, jars: list[Path], scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    silence_loggers()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = options.master
    builder = SparkSession.builder.master(master).appName(application)
    settings = {
        **_SETTINGS,
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData{_archive(options, jars)}",
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
        # Ships the jars to the executors, which do not see the driver's class path.
        settings["spark.jars"] = ",".join(map(str, jars))
    if options.executor_memory:
        settings["spark.executor.memory"] = options.executor_memory
    if options.executor_cores:
        settings["spark.executor.cores"] = str(options.executor_cores)
    for key, value in {**settings, **options.conf}.items():
        builder = builder.config(key, value)
    log_file = scratch / "driver.log"
    try:
        # This becomes the working directory of the JVM, which creates a directory `artifacts` in it.
        with _standard_error_to(log_file), chdir(scratch):
            on_interrupt = signal.getsignal(signal.SIGINT)
            session = builder.getOrCreate()
            # Spark's own handler would call the JVM in the middle of another call.
            signal.signal(signal.SIGINT, on_interrupt)
            return session
    except spark_errors() as e:
        # If the JVM ended before it could answer, only its log says why.
        reason = _reason(log_file) if "JAVA_GATEWAY_EXITED" in str(e) else one_line(e)
        raise LakeError(f"Spark did not start on {master}: {reason}") from e


def silence_loggers() -> None:
    """Keep Py4J and PySpark from printing: their exceptions already say what they would log."""
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        quiet = logging.getLogger(name)
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
    logging.getLogger().addFilter(_not_by_py4j)


def _not_by_py4j(record: logging.LogRecord) -> bool:
    """Py4J reports a lost connection to the root logger, also one that its own finalizers lost as the JVM ended."""
    return Path(record.pathname).parent.name != "py4j"


def _archive(options: SparkOptions, jars: list[Path]) -> str:
    """The JVM's option to make a class archive or to use one; it fits a class path without further jars only."""
    if options.archive_to is not None:
        return f" -XX:ArchiveClassesAtExit={options.archive_to}"
    quick = " -XX:TieredStopAtLevel=1" if options.quick else ""
    if not is_local(options.master) or options.packages:
        return quick
    return quick + archive_options(archive_path(java_build(), jars, require_spark()))


def _reason(log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").strip().splitlines() if log_file.exists() else []
    telling = [line for line in lines if "rror" in line or "nrecognized" in line]
    return (telling or lines or ["the JVM ended without a message"])[0].strip()[:300]


@contextmanager
def _jvm_that_ends(seconds_max: float) -> Iterator[None]:
    """Ends the JVM without calling it: a signal may have interrupted a call.

    The JVM ends when its standard input does. A write in progress is committed or not; both are fine.
    """
    from pyspark import SparkContext

    try:
        yield
    finally:
        gateway = SparkContext._gateway
        process = getattr(gateway, "proc", None)
        if gateway is not None and process is not None:
            gateway._gateway_client.is_connected = False  # Py4J's finalizers send nothing to a JVM that ends
            process.stdin.close()
            try:
                process.wait(seconds_max)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            gateway.shutdown()  # ends the threads of this process that served it
            SparkContext._gateway = SparkContext._jvm = None  # so that the next session starts its own JVM


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Replace standard error while the JVM starts, because the JVM inherits it."""
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
    """`<tmp>/klamm-spark-<uid>/<pid>`; removes the directories of processes that have ended."""
    base = Path(tempfile.gettempdir()) / f"klamm-spark-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    for old in base.iterdir():
        if old.name.isdigit() and not Path("/proc", old.name).exists():
            shutil.rmtree(old, ignore_errors=True)
    scratch = base / str(os.getpid())
    scratch.mkdir(exist_ok=True)
    return scratch


def spark_errors() -> tuple[type[Exception], ...]:
    """What a call into Spark may raise: its own errors, and Java exceptions that PySpark does not convert."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def one_line(error: BaseException) -> str:
    """The message of a Spark error, without plan, state and stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for mark in ("Reason:", ": "):  # a streaming query's cause; the exception of a failed call into Java
        for line in lines:
            if line.startswith(mark):
                return line.removeprefix(": ")[:300]
    return lines[0][:300] if lines else type(error).__name__
