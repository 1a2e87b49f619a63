"""What an `s3a:` lake needs: Hadoop's connector, a log store whose commits are conditional PUTs, and a probe.

Delta's own log store for S3 lets two writers commit the same version, and both are told that they won. With
`If-None-Match: *` the server refuses the second. A server that ignores the header would lose commits silently, so each
start puts an object twice and goes on only if the second is refused.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.pipelines.jars import cache_directory
from klamm.pipelines.lake_directory import WORK
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.maven import Artifact, cached_jar
from klamm.pipelines.spark_session import one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME: Final = "s3a"
CONNECTOR: Final = (
    Artifact("org.apache.hadoop", "hadoop-aws", "3.4.1"),
    Artifact("software.amazon.awssdk", "bundle", "2.24.6"),
)
LOG_STORE_JAR: Final = Path(__file__).parent / "java" / "klamm-log-store.jar"
LOG_STORE: Final = "klamm.lake.ConditionalPutLogStore"


def s3_jars() -> list[Path]:
    """The connector alone has 560 MB, so only s3a lakes fetch it."""
    directory = cache_directory().parent / f"s3a-{CONNECTOR[0].version}"
    if not (directory / CONNECTOR[-1].file).is_file():
        print("klamm: fetching Hadoop's S3 connector (560 MB, only once) ...", file=sys.stderr, flush=True)
    return [*(cached_jar(artifact, directory) for artifact in CONNECTOR), LOG_STORE_JAR]


def probe(spark: SparkSession, lake: str) -> None:
    """Raises LakeError unless the server refuses the second of two conditional PUTs."""
    jvm: Any = spark._jvm
    configuration = spark._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(f"{lake}/{WORK}/probe-{uuid.uuid4().hex}")
    try:
        store = jvm.klamm.lake.ConditionalPutLogStore(configuration)
        store.write(path, lines(jvm, "first"), False, configuration)
    except spark_errors() as e:
        raise LakeError(f"cannot write to {lake}: {one_line(e)}") from e
    refused = False
    try:
        store.write(path, lines(jvm, "second"), False, configuration)
    except spark_errors() as e:
        refused = "FileAlreadyExistsException" in str(e)
        if not refused:
            raise LakeError(f"cannot write to {lake}: {one_line(e)}") from e
    finally:
        path.getFileSystem(configuration).delete(path, False)
    if not refused:
        raise LakeError(f"{lake}: the server ignores If-None-Match, so two writers could lose each other's commits")


def lines(jvm: Any, text: str) -> Any:
    lines = jvm.java.util.ArrayList()
    lines.add(text)
    return lines.iterator()
