"""What an ingest does on request: backfill of a range, Avro by a schema registry, the drift report of JSON, maintenance
beside a running writer."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.interop.lake_table import Lake, kinds, once

from klamm.pipelines.backfill import Backfill, Bound
from klamm.pipelines.decode import Decode, Format
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.maintenance_job import MaintenanceReport, TableMaintenance
from klamm.pipelines.status import topic_status

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
HOUR_MS = 3_600_000


def backfill(
    lake: Lake, first: Bound | None = None, last: Bound | None = None, decode: Decode | None = None
) -> MaintenanceReport:
    directory = LocalDirectory(lake.path)
    with KafkaTopics(lake.bootstrap) as kafka:
        job = Backfill(lake.spark, directory, lake.topic, kafka, lake.bootstrap, decode or Decode())
        return job.run(first, last)


def test_a_backfill_adds_what_is_missing_and_nothing_else(lake: Lake) -> None:
    began = int(time.time() * 1000) - 3 * HOUR_MS  # old records would expire
    for hour in range(3):
        lake.produce(10, timestamp=began + HOUR_MS * hour)
    lake.ingest_cleanly()
    TableMaintenance(lake.spark, LocalDirectory(lake.path), lake.topic).forget(b"7")  # offsets 7, 17 and 27
    lake.table().delete("offset IN (3, 4, 13, 14, 25)")
    before = lake.state()

    assert backfill(lake, Bound(0), Bound(5)).rows == 2
    second, third = (Bound(began + HOUR_MS * hour, is_time=True) for hour in (1, 2))
    assert backfill(lake, second, third).rows == 2
    version = lake.table().version()
    assert backfill(lake, second, third).rows == 0
    assert lake.table().version() == version, "nothing is missing, so nothing is committed"

    assert sorted(row["offset"] for row in lake.rows("offset")) == [i for i in range(30) if i % 10 != 7 and i != 25]
    assert kinds(lake.audit()) == {"foreign-commit": 1, "gap": 1}, "offset 25 was in no range"
    assert lake.state() == before, "the positions of the ingest stay"


def test_a_backfill_and_a_compaction_run_beside_the_writer(lake: Lake) -> None:
    lake.produce(40)
    maintenance = TableMaintenance(lake.spark, LocalDirectory(lake.path), lake.topic)
    done: list[int] = []

    def maintain() -> None:
        done.append(backfill(lake, Bound(0), Bound(1000)).rows)
        done.append(maintenance.compact().rows)

    report = lake.ingest_cleanly(max_offsets_per_trigger=20, at_point=once("after-commit", maintain))
    assert report.offsets == 40
    assert done[0] == 0, "a backfill reads nothing above the positions of the writer"
    found = lake.audit()
    assert (found.findings, found.rows) == ([], 40)


SCHEMAS = {
    1: {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]},
    2: {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
    },
}


class Registry:
    """Serves SCHEMAS as the versions of one subject. While it is `broken`, it answers 500."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False
        self.versions = [1]
        self.url = ""

    def answer(self, path: str) -> tuple[int, Any]:
        self.asked.append(path)
        if self.broken:
            return 500, {"error_code": 50001, "message": "out of order"}
        *_, kind, last = path.split("/")
        number = max(self.versions) if last == "latest" else int(last) if last.isdigit() else None
        if number is None and last == "versions":
            return 200, self.versions
        if number in SCHEMAS and (kind == "ids" or number in self.versions):
            return 200, {"id": number, "version": number, "schema": json.dumps(SCHEMAS[number])}
        return 404, {"error_code": 40403, "message": "not found"}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving(Registry()) as found:
        yield found


@contextmanager
def serving(registry: Registry) -> Iterator[Registry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = registry.answer(self.path)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def order(schema: int, number: int, note: str | None = None) -> bytes:
    """A framed Avro value: numbers are zigzag, and a string has its length before it."""
    body = bytes([2 * number]) + (b"" if note is None else bytes([2 * len(note)]) + note.encode())
    return b"\0" + struct.pack(">I", schema) + body


def produce_values(lake: Lake, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": lake.bootstrap})
    for value in values:
        producer.produce(lake.topic, value, partition=0)
    assert producer.flush(60) == 0


def test_avro_values_are_decoded_by_the_schema_that_they_name(lake: Lake, registry: Registry) -> None:
    registry.versions = [1]
    decode = Decode(Format.AVRO, registry=registry.url, schema=json.dumps(SCHEMAS[2]))
    produce_values(lake, order(1, 5), order(2, 6, "new"), b"\1plain", order(9, 7), None, order(1, 8))
    report = lake.ingest_cleanly(decode=decode)
    rows = {row["offset"]: row for row in lake.rows("offset", "data", "error")}
    assert [rows[offset]["data"] for offset in (0, 1, 4, 5)] == [
        {"id": 5, "note": "none"},
        {"id": 6, "note": "new"},
        None,
        {"id": 8, "note": "none"},
    ]
    assert [rows[offset]["error"] for offset in range(6)] == [
        *(None, None, "undecodable Avro: it names no schema"),
        *("undecodable Avro: the registry has no schema 9", None, None),
    ]
    assert report.dead_letters == 2
    assert lake.audit().is_clean
    assert registry.asked.count("/schemas/ids/2") == 1, "not a version of the subject, so it is asked for once"
    assert registry.asked.count("/schemas/ids/9") == 1

    registry.broken = True
    lake.produce(1)
    with pytest.raises(Exception, match=rf"the schema registry answers 500 to {registry.url}/subjects/"):
        lake.ingest(decode=decode)
    assert lake.state().epoch == 1, "nothing was claimed"


def test_the_drift_of_json_is_counted_reported_and_kept(lake: Lake) -> None:
    decode = Decode(Format.JSON, "id long, name string")
    produce_values(
        *(lake, b'{"id": 1, "name": "a"}', b'{"id": 2, "more": 1, "other": {"x": 1}}', b'{"id": 3, "more": null}'),
        *(b'{"id": "x"}', b"broken", None, b"[1]"),
    )
    report = lake.ingest_cleanly(decode=decode)
    assert (dict(report.drift.unknown), dict(report.drift.unfit)) == ({"more": 2, "other": 1}, {"id": 1})
    assert "fields that the schema lacks: more (2), other (1), fields of another type: id (1)" in report.line()
    produce_values(lake, b'{"more": 1}')
    inferred = lake.ingest_cleanly(decode=Decode(Format.JSON))
    assert dict(inferred.drift.unknown) == {"more": 1}, "the table's schema stays"
    with KafkaTopics(lake.bootstrap) as kafka:
        status = topic_status(LocalDirectory(lake.path), lake.topic, kafka, 0)
    assert dict(status.drift.unknown) == {"more": 3, "other": 1}
    assert "more (3)" in status.line()


def test_the_schema_of_json_is_inferred_from_the_newest_records(lake: Lake) -> None:
    produce_values(lake, b'{"id": 1, "at": {"x": 2.5}}', b"broken", b'{"id": 2, "tags": ["a"]}')
    report = lake.ingest_cleanly(decode=Decode(Format.JSON))
    rows = {row["offset"]: row["data"] for row in lake.rows("offset", "data")}
    assert rows == {
        0: {"at": {"x": 2.5}, "id": 1, "tags": None},
        1: None,
        2: {"at": None, "id": 2, "tags": ["a"]},
    }
    assert (report.dead_letters, bool(report.drift)) == (1, False)
