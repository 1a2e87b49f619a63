"""Bad luck that neither Kafka nor the store announces: a topic replaced while it is read, a store that is slow or loses
its answer to a commit, transactions that stay open. Each batch is in the table once, or the audit says what is wrong.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import boto3
import pytest
from confluent_kafka import Producer
from tests.interop.lake_faulty_store import FaultyStore, faulty_store, first
from tests.interop.lake_table import Lake, kinds, once

from klamm.pipelines.audit import AuditReport
from klamm.pipelines.audit_job import audit_table
from klamm.pipelines.decode import Decode, Format
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.idle import idle_report
from klamm.pipelines.ingest_options import OnNewLog
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeError, LakeRefusal

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_topic_recreated_while_spark_reads_it_is_told_and_the_other_topic_goes_on(lake: Lake) -> None:
    """The positions fit, so neither Spark nor the ranges of the commits show it: only the records do."""
    good = lake.create(f"{lake.topic}-good")
    for topic in (lake.topic, good):
        lake.produce(50, topic)
    bad, other = lake.ingest(lake.topic, good, at_point=once("before-write", lambda: lake.recreate(80), lake.topic))
    assert "the topic was recreated, while batch 0 was read: its rows 0..49 may be of either log" in str(bad.failure)
    assert (bad.offsets, other.failure, other.offsets) == (50, None, 50)
    assert kinds(lake.audit()) == {"other-log": 1, "content": 1}

    assert lake.ingest_cleanly(on_new_log=OnNewLog.NEW_INCARNATION).offsets == 80
    (finding,) = lake.audit().findings
    assert (finding.kind, finding.incarnation, finding.start) == ("content", 1, 49)


def test_a_directory_of_something_else_is_refused_and_left_alone(lake: Lake) -> None:
    foreign = lake.path / lake.topic / "part-0.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"PAR1")
    with pytest.raises(LakeRefusal, match=r"holds something else than a Delta table, such as part-0\.parquet"):
        lake.ingest()
    assert [path.name for path in foreign.parent.iterdir()] == [foreign.name]


class FaultyLake:
    """A lake on an S3 server behind a proxy, in a bucket of its own."""

    def __init__(self, lake: Lake, store: FaultyStore, bucket: str) -> None:
        self.lake = lake
        self.store = store
        self.uri = f"s3a://{bucket}/lake"

    def audit(self) -> AuditReport:
        with KafkaTopics(self.lake.bootstrap) as kafka:
            table = HadoopDirectory(self.lake.spark, self.uri).child(self.lake.topic)
            return audit_table(self.lake.spark, table, self.lake.topic, kafka)


@pytest.fixture
def faulty(lake: Lake, s3_settings: dict[str, str]) -> Iterator[FaultyLake]:
    endpoint = s3_settings["spark.hadoop.fs.s3a.endpoint"]
    bucket = f"faulty-{uuid.uuid4().hex[:8]}"
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket=bucket)
    with faulty_store(urlsplit(endpoint).netloc) as store:
        lake.spark._jsc.hadoopConfiguration().set(f"fs.s3a.bucket.{bucket}.endpoint", store.url)
        yield FaultyLake(lake, store, bucket)


@pytest.mark.parametrize(
    ("version", "delay_seconds"),
    [
        pytest.param(0, 0.0, id="the claim that creates the table"),
        pytest.param(2, 0.02, id="the last batch, on a slow store"),
    ],
)
def test_a_commit_whose_answer_is_lost_counts_once(faulty: FaultyLake, version: int, delay_seconds: float) -> None:
    """The client sends it again, and the store refuses it, because it has it already."""
    lake = faulty.lake
    lake.produce(40)
    faulty.store.delay_seconds = delay_seconds
    faulty.store.lose = first("PUT", f"_delta_log/{version:020d}.json")
    (report,) = lake.ingest(lake=faulty.uri, max_offsets_per_trigger=20)
    assert len(faulty.store.lost) == 1
    assert (report.failure, report.offsets, report.restarts) == (None, 40, 0)
    faulty.store.delay_seconds = 0.0
    found = faulty.audit()
    assert (found.findings, found.rows, found.version) == ([], 40, 2)


def test_wrong_credentials_are_told_in_one_line(faulty: FaultyLake) -> None:
    faulty.lake.produce(1)
    faulty.store.refuses = True
    with pytest.raises(LakeError, match=rf"cannot write to {faulty.uri}: .*403") as told:
        faulty.lake.ingest(lake=faulty.uri)
    assert "\n" not in str(told.value)


def test_a_schema_that_does_not_fit_the_table_is_refused(lake: Lake) -> None:
    producer = Producer({"bootstrap.servers": lake.bootstrap})
    producer.produce(lake.topic, b'{"id": 1}', partition=0)
    assert producer.flush(60) == 0
    lake.ingest_cleanly(decode=Decode(Format.JSON, "id long"))
    version = lake.table().version()
    with pytest.raises(LakeError, match="Failed to merge"):
        lake.ingest(decode=Decode(Format.JSON, "id array<long>"))
    assert lake.table().version() == version
    assert lake.audit().is_clean


def test_transactions_that_stay_open_hold_back_their_partition_only(lake: Lake) -> None:
    """One is open from the first record of its partition on, one is left behind by a producer that has gone."""
    topic = lake.create(f"{lake.topic}-open", partitions=3)
    for partition in (0, 1):
        lake.produce(5, topic, partition)
    open_producers = []
    for partition in (1, 2):
        producer = Producer(
            {
                "bootstrap.servers": lake.bootstrap,
                "transactional.id": f"{topic}-{partition}",
                "transaction.timeout.ms": 600_000,  # they must stay open on a slow machine
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"open", partition=partition)
        assert producer.flush(60) == 0
        open_producers.append(producer)
    for partition in (0, 1, 2):
        lake.produce(5, topic, partition)

    (report,) = lake.ingest(topic)
    assert (report.failure, dict(report.ends)) == (None, {0: 10, 1: 5, 2: 0})
    assert report.waiting == 12
    table = LocalDirectory(lake.path / topic)
    with KafkaTopics(lake.bootstrap) as kafka:
        found = audit_table(lake.spark, table, topic, kafka)
        assert (found.findings, found.rows) == ([], 15)
        idle = idle_report(LocalDirectory(lake.path), topic, kafka, lake.options(topic))
        assert idle is not None, "what waits is no work"
        assert idle.waiting == 12

        open_producers[0].abort_transaction(60)
        open_producers[1].commit_transaction(60)
        assert idle_report(LocalDirectory(lake.path), topic, kafka, lake.options(topic)) is None
        (report,) = lake.ingest(topic)
        assert (report.failure, report.waiting, dict(report.ends)) == (None, 0, {0: 10, 1: 12, 2: 7})
        found = audit_table(lake.spark, table, topic, kafka)
    assert (found.findings, found.rows) == ([], 26)
    assert sorted((e.kind, e.partition, e.start) for e in found.explained) == [
        *(("aborted", 1, 5), ("marker", 1, 11), ("marker", 2, 6)),
    ]
