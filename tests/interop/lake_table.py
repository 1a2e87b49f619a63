"""A topic, its table, and what a user does with them: the common part of the lake's tests in one Spark session."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from klamm.pipelines.audit import AuditReport
from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.ingest import ingest_topics
from klamm.pipelines.ingest_options import IngestOptions, TopicReport
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import IngestState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 120


class Lake:
    """A topic, its table, and what a user does with them."""

    def __init__(self, spark: SparkSession, bootstrap: str, path: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.path = path
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.topic = self.create(f"lake-{uuid.uuid4().hex[:8]}")

    def create(self, topic: str, partitions: int = 1) -> str:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        return topic

    def produce(self, count: int, topic: str | None = None, partition: int = 0, *, timestamp: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        tag = uuid.uuid4().hex[:6]
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        for i in range(count):
            producer.produce(
                topic or self.topic,
                key=b"%d" % i,
                value=f"{tag}-{i}".encode(),
                partition=partition,
                timestamp=timestamp,
                on_delivery=delivered,
            )
        assert producer.flush(60) == 0
        assert failures == []

    def recreate(self, count: int, topic: str | None = None, partitions: int = 1) -> None:
        topic = topic or self.topic
        self.admin.delete_topics([topic])[topic].result(30)
        deadline = time.monotonic() + WAIT_SECONDS
        while topic in self.admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # Metadata has no event to await
        while True:
            try:
                self.create(topic, partitions)
                break
            except Exception as e:  # still being deleted
                assert "already exists" in str(e) and time.monotonic() < deadline
                time.sleep(0.1)
        self.produce(count, topic)

    def options(self, *topics: str, **changes: Any) -> IngestOptions:
        options = IngestOptions(self.bootstrap, topics or (self.topic,), str(self.path))
        return replace(options, **changes)

    def ingest(self, *topics: str, **changes: Any) -> list[TopicReport]:
        return ingest_topics(self.spark, self.options(*topics, **changes))

    def ingest_cleanly(self, **changes: Any) -> TopicReport:
        (report,) = self.ingest(**changes)
        assert report.failure is None
        return report

    def audit(self) -> AuditReport:
        with KafkaTopics(self.bootstrap) as kafka:
            return audit_table(self.spark, LocalDirectory(self.path / self.topic), self.topic, kafka)

    def state(self, topic: str | None = None) -> IngestState:
        state = DeltaLog(LocalDirectory(self.path / (topic or self.topic))).state()
        assert state is not None
        return state

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.path / self.topic))

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        return list(self.table().to_pyarrow_table(columns=list(columns)).to_pylist())


def kinds(report: AuditReport) -> Counter[str]:
    return Counter(finding.kind for finding in report.findings)


def once(point: str, action: Callable[[], None], topic: str | None = None) -> Callable[[str, str], None]:
    """Acts when a batch of this topic, or of any, is at the point for the first time."""
    done: list[str] = []

    def at(name: str, of: str) -> None:
        if name == point and topic in (None, of) and not done:
            done.append(name)
            action()

    return at


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # Metadata and files have no event to await
