"""An archive of the JVM's loaded classes, which halves the time to the first commit.

It fits one build of Java and one class path only, so it is named after both, and after the job that loads its classes.
`python -m klamm.pipelines.jars` makes it: the JVM of a small ingest dumps its classes when it ends. Without an archive
everything works, slower.
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

_DUMP_SECONDS_MAX: Final = 600
_JOB: Final = """
import sys
from pathlib import Path
from klamm.client.blocking import blocking_client
from klamm.client.producer import Producer
from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.ingest import ingest_topics
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.spark_session import SparkOptions, spark_session
from klamm.testing.cluster import running_cluster
from klamm.wire.records import Record
archive, lake = map(Path, sys.argv[1:])
options = SparkOptions("local[2]", archive_to=archive)
with running_cluster(brokers=1) as cluster, spark_session(options, "klamm class archive") as spark:
    cluster.create_topic("archived", partitions=2)
    for _ in range(2):
        with blocking_client(cluster.bootstrap, client_id="klamm-lake") as client:
            records = [Record(b"k", b"v", 1), Record(None, None, 1)]
            client.run(Producer(client.cluster).send("archived", {0: records, 1: records}))
        (report,) = ingest_topics(spark, IngestOptions(cluster.bootstrap, ["archived"], str(lake)))
        assert report.failure is None, report.failure
    with KafkaTopics(cluster.bootstrap) as kafka:
        audit_table(spark, LocalDirectory(lake / "archived"), "archived", kafka)
"""
"""A real ingest and its audit, from a broker of its own, load the classes that every later run needs."""


@cache
def java_build() -> str:
    """What `java -version` prints. Empty if it cannot be run."""
    try:
        done = subprocess.run([java_command(), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def archive_path(build: str, jars: Sequence[Path], spark_home: Path) -> Path:
    home = spark_home.resolve()  # the JVM compares the files themselves, so a linked environment shares the archive
    described = "\n".join((build, _JOB, str(home), *(f"{jar}:{jar.stat().st_size}" for jar in jars)))
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
