"""How fast `klamm lake ingest` is beside the plain three-line Spark job, and how soon a cold start commits.

One cluster, one topic, one warm session. Rounds alternate between the jobs, after one warm-up each, and every job
writes a new table. Two pairs are compared: without a limit of the batch, and with the same limit. A ratio is the plain
job's median time over klamm's: above 1, klamm is faster. klamm's time is from the first check to the last commit.
A cold start has the class archive, as after `python -m klamm.pipelines.jars`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.client.blocking import blocking_client
from klamm.client.producer import Producer
from klamm.pipelines.class_archive import archive_path, java_build, make_archive
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.ingest import ingest_topics
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.jars import require_spark, spark_jars
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import SparkOptions, spark_session
from klamm.testing.cluster import running_cluster
from klamm.wire.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS: Final = 6
COLD_RECORDS: Final = 300
_CHUNK: Final = 20_000
_WAIT_SECONDS: Final = 300
TOPIC, COLD_TOPIC = "bench-lake", "bench-lake-cold"
Say = Callable[[str], None]


def bench(*, records: int, record_bytes: int, limit: int, rounds: int, progress: Say) -> dict[str, Any]:
    make_archive(archive_path(java_build(), spark_jars(), require_spark()))
    with tempfile.TemporaryDirectory(prefix="klamm-bench-lake-") as scratch, running_cluster() as cluster:
        for topic in (TOPIC, COLD_TOPIC):
            cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=1)
        _fill(cluster.bootstrap, TOPIC, records, record_bytes)
        _fill(cluster.bootstrap, COLD_TOPIC, COLD_RECORDS, record_bytes)
        progress(f"{records} records of {record_bytes} bytes are in the topic")
        cold = [_cold_start(cluster.bootstrap, Path(scratch, f"cold-{n}")) for n in range(rounds)]
        progress(f"cold start to the first commit: {', '.join(f'{s:.1f} s' for s in cold)}")
        times = _alternate(cluster.bootstrap, Path(scratch), records, limit, rounds, progress)
    medians = {name: round(statistics.median(seconds), 2) for name, seconds in times.items()}
    return {
        "records": records,
        "record_bytes": record_bytes,
        "limit": limit,
        "rounds": rounds,
        "seconds": {name: [round(s, 2) for s in seconds] for name, seconds in times.items()},
        "medians": medians,
        "ratios": {
            "without_limit": round(medians["plain"] / medians["klamm"], 2),
            "same_limit": round(medians["plain_limited"] / medians["klamm_limited"], 2),
        },
        "cold_start_seconds": round(statistics.median(cold), 1),
    }


def _fill(bootstrap: str, topic: str, count: int, record_bytes: int) -> None:
    body = os.urandom(max(1, record_bytes - 10)).hex()[: max(1, record_bytes - 10)]
    with blocking_client(bootstrap, client_id="klamm-bench") as client:
        producer = Producer(client.cluster)
        for start in range(0, count, _CHUNK):
            numbers = range(start, min(count, start + _CHUNK))
            records = {
                p: [Record(None, f"{i:010d}{body}".encode(), int(time.time() * 1000)) for i in numbers[p::PARTITIONS]]
                for p in range(PARTITIONS)
            }
            client.run(producer.send(topic, {p: batch for p, batch in records.items() if batch}))


def _alternate(
    bootstrap: str, scratch: Path, records: int, limit: int, rounds: int, progress: Say
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    with spark_session(SparkOptions("local[2]"), "klamm bench lake") as spark:
        jobs: dict[str, Callable[[Path], int]] = {
            "plain": lambda path: _plain(spark, bootstrap, path, None),
            "klamm": lambda path: _klamm(spark, bootstrap, path, None),
            "plain_limited": lambda path: _plain(spark, bootstrap, path, limit),
            "klamm_limited": lambda path: _klamm(spark, bootstrap, path, limit),
        }
        for number in range(rounds + 1):
            for name, job in jobs.items():
                path = scratch / f"{name}-{number}"
                began = time.monotonic()
                rows = job(path)
                seconds = time.monotonic() - began
                shutil.rmtree(path, ignore_errors=True)
                if rows != records:
                    raise LakeError(f"{name} wrote {rows} of {records} records")
                progress(f"{f'round {number}' if number else 'warm-up'}: {name} took {seconds:.1f} s")
                if number:
                    times.setdefault(name, []).append(seconds)
    return times


def _plain(spark: SparkSession, bootstrap: str, path: Path, limit: int | None) -> int:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    source = source.option("startingOffsets", "earliest")
    if limit is not None:
        source = source.option("maxOffsetsPerTrigger", limit)
    table = str(path / TOPIC)
    query = (
        source.load().writeStream.format("delta").trigger(availableNow=True)
        .option("checkpointLocation", str(path / "checkpoint")).start(table)
    )  # fmt: skip
    query.awaitTermination()
    return sum(file.rows or 0 for commit in DeltaLog(LocalDirectory(path / TOPIC)).commits() for file in commit.added)


def _klamm(spark: SparkSession, bootstrap: str, path: Path, limit: int | None) -> int:
    (report,) = ingest_topics(spark, IngestOptions(bootstrap, [TOPIC], str(path), max_offsets_per_trigger=limit))
    if report.failure:
        raise LakeError(report.failure)
    return report.offsets


def _cold_start(bootstrap: str, lake: Path) -> float:
    command = [sys.executable, "-m", "klamm", "lake", "ingest", "--bootstrap-server", bootstrap, "--json"]
    command += ["--topics", COLD_TOPIC, "--lake", str(lake), "--master", "local[2]"]
    log = DeltaLog(LocalDirectory(lake / COLD_TOPIC))
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while (state := log.state()) is None or not state.ends:
            late = time.monotonic() - began > _WAIT_SECONDS
            if late or process.poll() not in (None, 0):
                process.kill()
                said = process.stderr.read().strip() if process.stderr else ""
                raise LakeError(
                    f"the cold start made no commit within {_WAIT_SECONDS} s" if late else f"cold start: {said}"
                )
            time.sleep(0.01)
        took = time.monotonic() - began
        process.wait(_WAIT_SECONDS)
    return took
