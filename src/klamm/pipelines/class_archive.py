"""An archive of the JVM's loaded classes, which halves the time to the first commit.

It fits one build of Java and one class path only, so it is named after both. `python -m klamm.pipelines.jars` makes it:
a short Spark job loads the classes, and the JVM dumps them when it ends. Without an archive everything works, slower.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from klamm.pipelines.jars import cache_directory, java_command
from klamm.pipelines.lake_state import LakeError

_DUMP_SECONDS_MAX: Final = 300
_JOB: Final = """
import sys
from pathlib import Path
from klamm.pipelines.columns import COLUMNS, table_schema
from klamm.pipelines.spark_session import SparkOptions, spark_session
archive, table = sys.argv[1:]
options = SparkOptions("local[2]", archive_to=Path(archive))
with spark_session(options, "klamm class archive") as spark:
    spark.sql(f"CREATE TABLE delta.`{table}` ({table_schema(COLUMNS)}) USING DELTA")
    row = spark.range(3).selectExpr(*(f"CAST(NULL AS {kind}) AS `{name}`" for name, kind in COLUMNS))
    for _ in range(2):
        row.write.format("delta").mode("append").option("userMetadata", "x").save(table)
    spark.read.format("delta").load(table).groupBy("partition").count().collect()
    source = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS topic")
    query = source.writeStream.foreachBatch(lambda rows, _: rows.count()).option(
        "checkpointLocation", f"{table}-checkpoint").trigger(availableNow=True).start()
    query.awaitTermination(60)
"""


@cache
def java_build() -> str:
    """What `java -version` prints. Empty if it cannot be run."""
    try:
        done = subprocess.run([java_command(), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def archive_path(build: str, jars: Sequence[Path], spark_home: Path) -> Path:
    described = "\n".join((build, str(spark_home), *(f"{jar}:{jar.stat().st_size}" for jar in jars)))
    return cache_directory().parent / f"classes-{hashlib.sha256(described.encode()).hexdigest()[:16]}.jsa"


def archive_options(archive: Path) -> str:
    """For the JVM; empty without an archive. The JVM prints about archives on standard output, so it is told not to."""
    if not archive.is_file():
        return ""
    return f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def make_archive(archive: Path) -> None:
    """Raises LakeError. The dump takes half a minute and 200 MB."""
    if archive.is_file():
        return
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=archive.parent) as scratch:
        part = Path(scratch, "classes.jsa")
        try:
            done = subprocess.run(
                [sys.executable, "-c", _JOB, str(part), str(Path(scratch, "table"))],
                stdout=subprocess.DEVNULL,  # the dump prints hundreds of warnings there
                stderr=subprocess.PIPE,
                text=True,
                timeout=_DUMP_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as e:
            raise LakeError(f"the class archive took more than {_DUMP_SECONDS_MAX} s") from e
        if not part.is_file():
            raise LakeError(f"cannot make the class archive: {(done.stderr.splitlines() or ['no reason given'])[-1]}")
        os.replace(part, archive)
