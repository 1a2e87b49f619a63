"""The parts of a Spark run that need no JVM: SQL for decoding, ranges around bad records, the class archive, jars."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from klamm.pipelines import maven
from klamm.pipelines.bad_records import good_parts
from klamm.pipelines.class_archive import archive_options, archive_path
from klamm.pipelines.columns import PartitionBy
from klamm.pipelines.decode import Decode, Format, quoted
from klamm.pipelines.ingest import matching
from klamm.pipelines.lake_location import local_lake, parse_location
from klamm.pipelines.lake_state import LakeError, LakeRefusal, OffsetRange
from klamm.pipelines.maintenance import FORGET, LogKey, Maintenance, parse_maintenance
from klamm.pipelines.maven import Artifact, cached_jar
from klamm.pipelines.s3 import LOG_STORE, LOG_STORE_JAR
from klamm.pipelines.table_rules import check_partitioning


def test_spark_reads_what_lies_around_bad_records() -> None:
    ranges = {0: OffsetRange(0, 10), 1: OffsetRange(5, 8), 2: OffsetRange(3, 3)}
    assert good_parts(ranges, {0: OffsetRange(4, 7)}) == [{0: (0, 4), 1: (5, 8)}, {0: (7, 10)}]
    assert good_parts(ranges, {0: OffsetRange(0, 10), 1: OffsetRange(5, 6)}) == [{1: (6, 8)}]


def test_a_table_keeps_its_partitioning() -> None:
    check_partitioning("/lake/t", [], PartitionBy.NONE)
    check_partitioning("/lake/t", ["date", "hour"], PartitionBy.HOUR)
    with pytest.raises(LakeRefusal, match="/lake/t is partitioned by date: use --partition-by date,"):
        check_partitioning("/lake/t", ["date"], PartitionBy.NONE)


def test_a_pattern_that_matches_no_topic_is_refused() -> None:
    with pytest.raises(LakeError, match="no topic matches x"):
        matching("x", ["y", "__x", "_klamm"])
    assert matching(".*", ["_klamm", "__consumer_offsets", "a"]) == ["a"], "hole 13: the lake's own directory"


def test_raw_values_are_never_bad() -> None:
    assert (Decode().data, Decode().reason) == (None, "CAST(NULL AS STRING)")


def test_each_format_says_why_a_value_is_bad() -> None:
    assert "oversized" in Decode(max_value_bytes=5).reason
    assert "undecodable JSON" in Decode(Format.JSON, "id long").reason
    assert "undecodable Avro" in Decode(Format.AVRO, "{}").reason
    assert "from_json" in str(Decode(Format.JSON, "id long").data)


def test_a_schema_cannot_leave_its_literal() -> None:
    assert quoted("a') OR ('1'='1") == r"'a\') OR (\'1\'=\'1'"
    assert quoted("a\\'") == r"'a\\\''"


@pytest.mark.parametrize(("text", "is_local"), [("/data/lake", True), ("file:///data", True), ("hdfs://n:1/l", False)])
def test_only_a_directory_is_local(text: str, is_local: bool) -> None:
    assert (local_lake(parse_location(text)) is not None) == is_local


def test_an_archive_belongs_to_one_java_and_one_class_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_CACHE", str(tmp_path))
    jar, other = tmp_path / "a.jar", tmp_path / "b.jar"
    jar.write_bytes(b"1")
    other.write_bytes(b"1")
    mine = archive_path("17.0.1", [jar], tmp_path)
    assert len({mine, archive_path("17.0.2", [jar], tmp_path), archive_path("17.0.1", [jar, other], tmp_path)}) == 3
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path, target_is_directory=True)
    assert archive_path("17.0.1", [jar], linked) == mine
    assert archive_options(mine) == ""
    mine.touch()
    assert f"-XX:SharedArchiveFile={mine}" in archive_options(mine)


def serve(monkeypatch: pytest.MonkeyPatch, body: bytes, checksum: str) -> None:
    def opened(url: str, timeout: float) -> io.BytesIO:
        return io.BytesIO(checksum.encode() if url.endswith(".sha1") else body)

    monkeypatch.setattr(maven.urllib.request, "urlopen", opened)


JAR = Artifact("org.example", "a", "1")


def test_a_jar_is_fetched_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, b"jar", "0" * 40)
    with pytest.raises(LakeError, match="does not fit its checksum"):
        cached_jar(JAR, tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing half-fetched stays"
    serve(monkeypatch, b"jar", hashlib.sha1(b"jar").hexdigest())
    assert cached_jar(JAR, tmp_path).read_bytes() == b"jar"
    serve(monkeypatch, b"other", "0" * 40)
    assert cached_jar(JAR, tmp_path).read_bytes() == b"jar"


def test_a_jar_that_cannot_be_fetched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str, timeout: float) -> io.BytesIO:
        raise OSError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", refused)
    with pytest.raises(LakeError, match=r"cannot fetch .*/org/example/a/1/a-1\.jar"):
        cached_jar(JAR, tmp_path)


def test_the_shipped_log_store_has_the_class_that_spark_is_told() -> None:
    with zipfile.ZipFile(LOG_STORE_JAR) as jar:
        assert f"{LOG_STORE.replace('.', '/')}.class" in jar.namelist()


def test_maintenance_survives_json_and_broken_metadata_is_told() -> None:
    said = Maintenance("klamm:main:t", "t", FORGET, {LogKey(2, 1): [OffsetRange(3, 5), OffsetRange(9, 10)]})
    assert parse_maintenance(said.to_json()) == said
    assert parse_maintenance('{"app":"klamm:main:t"}') is None
    with pytest.raises(LakeError, match="malformed"):
        parse_maintenance('{"app":"klamm:main:t","maintenance":"forget"}')


_LOST_CONNECTION = """
import socket, struct, threading
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from klamm.pipelines.spark_session import silence_loggers

def reset_the_first(listener):
    peer, _ = listener.accept()
    peer.recv(1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()

listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=reset_the_first, args=(listener,), daemon=True).start()
silence_loggers()
gateway = ClientServer(
    JavaParameters(port=listener.getsockname()[1]), PythonParameters(port=0), python_server_entry_point=None
)
print(gateway._gateway_client.send_command("m\\nd\\no1\\ne\\n"))
gateway.shutdown_callback_server()
"""


def test_a_connection_that_the_jvm_resets_prints_nothing() -> None:
    """Py4J's finalizers may send in the moment in which the JVM ends; the root logger would print the traceback."""
    done = subprocess.run(
        [sys.executable, "-c", _LOST_CONNECTION], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("x\n", "")
