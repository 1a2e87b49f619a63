"""A lake on an S3 server: commits by conditional PUT, refused where the server ignores the condition.

The drivers that are killed there run in `make soak` (`test_lake_stores.py`); here an ingest stops at a named point, and
two writers race in one JVM.
"""

from __future__ import annotations

import re
import subprocess
import threading
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from log_store_jar import CLASS, compiled
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from tests.interop.lake_stores import BUCKET
from tests.interop.lake_table import Lake, once

from klamm.pipelines import s3
from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
ROUNDS = 10


class Stopped(Exception):
    pass


def test_an_ingest_into_s3_goes_on_where_it_stopped(lake: Lake) -> None:
    uri = f"s3a://{BUCKET}/{uuid.uuid4().hex[:8]}"
    lake.produce(40)

    def stop() -> None:
        raise Stopped

    (report,) = lake.ingest(lake=uri, max_offsets_per_trigger=20, at_point=once("after-commit", stop))
    assert (report.failure, report.restarts, report.epoch) == (None, 1, 2)
    assert report.offsets == 20, "the first batch was committed before it stopped"
    with KafkaTopics(lake.bootstrap) as kafka:
        found = audit_table(lake.spark, HadoopDirectory(lake.spark, uri).child(lake.topic), lake.topic, kafka)
    assert (found.findings, found.rows) == ([], 40)


def test_two_writers_of_one_version_never_both_win(lake_spark: SparkSession) -> None:
    jvm: Any = lake_spark._jvm
    settings = lake_spark._jsc.hadoopConfiguration()
    for number in range(ROUNDS):
        path = jvm.org.apache.hadoop.fs.Path(f"s3a://{BUCKET}/race/{number:020d}.json")
        start, outcomes = threading.Barrier(2), list[str]()

        def write(name: str, path: Any = path, start: threading.Barrier = start, told: list[str] = outcomes) -> None:
            store = jvm.klamm.lake.ConditionalPutLogStore(settings)
            start.wait()
            try:
                store.write(path, s3.lines(jvm, name), False, settings)
                told.append(name)
            except spark_errors() as e:
                assert "FileAlreadyExistsException" in str(e), e
                told.append("refused")

        writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert sorted(outcomes) in (["one", "refused"], ["refused", "two"])
        (winner,) = set(outcomes) - {"refused"}
        assert HadoopDirectory(lake_spark, path.toString()).read_text() == f"{winner}\n"


def test_a_server_that_ignores_the_condition_is_refused(
    lake_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.probe(lake_spark, f"s3a://{BUCKET}/probed")
    with pytest.raises(LakeError, match="cannot write to s3a://no-such-bucket"):
        s3.probe(lake_spark, "s3a://no-such-bucket/probed")

    def without_the_condition(self: Any, environ: Any, start: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return serve(self, environ, start)

    serve = DomainDispatcherApplication.__call__
    monkeypatch.setattr(DomainDispatcherApplication, "__call__", without_the_condition)
    with pytest.raises(LakeError, match="ignores If-None-Match"):
        s3.probe(lake_spark, f"s3a://{BUCKET}/probed")


def test_the_shipped_log_store_is_its_source_compiled(tmp_path: Path) -> None:
    """If it fails after a change of the source: python scripts/log_store_jar.py"""
    code = compiled(tmp_path)
    with zipfile.ZipFile(s3.LOG_STORE_JAR) as jar:
        jar.extract(CLASS, tmp_path / "shipped")
    shipped = tmp_path / "shipped" / CLASS
    if shipped.read_bytes() != code:  # another compiler may number its constants otherwise
        assert disassembled(shipped) == disassembled(tmp_path / CLASS)


def disassembled(path: Path) -> str:
    done = subprocess.run(["javap", "-p", "-c", str(path)], capture_output=True, text=True, check=True)
    return re.sub(r"#\d+", "#", done.stdout)
