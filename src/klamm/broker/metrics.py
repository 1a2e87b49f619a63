"""The broker's gauges and counters under Kafka's names. The data path only counts; a scrape reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from klamm.broker.appends import Appends
from klamm.broker.fetch_sessions import FetchSessions
from klamm.broker.handlers.dispatch import served
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_traffic import TopicTraffic
from klamm.log.log_manager import LogManager
from klamm.telemetry.metrics import MetricName, MetricsRegistry
from klamm.wire.apis import ApiKey

SERVER = "kafka.server"
LOG = "kafka.log"
CLUSTER = "kafka.cluster"
REPLICAS = "ReplicaManager"
TOPICS = "BrokerTopicMetrics"
LOGS_MAX = 2_000
"""A scrape of more would be slow to make and slow to store."""
PARTITIONS_MAX = 500
"""Fewer, because each has six gauges."""


def register_metrics(
    metrics: MetricsRegistry,
    replicas: ReplicaManager,
    appends: Appends,
    reads: Reads,
    requests: Mapping[ApiKey, int],
) -> None:
    read = metrics.read
    for api in served():
        count = partial(_count_of, requests, api.key)
        read("kafka.network", "RequestMetrics", "RequestsPerSec", count, request=api.name)
    read(SERVER, REPLICAS, "LeaderCount", lambda: replicas.gauges.leaders)
    read(SERVER, REPLICAS, "PartitionCount", lambda: len(replicas.partitions))
    read(SERVER, REPLICAS, "UnderReplicatedPartitions", lambda: replicas.gauges.under_replicated)
    read(SERVER, REPLICAS, "UnderMinIsrPartitionCount", lambda: replicas.gauges.under_min_isr)
    read(SERVER, REPLICAS, "AtMinIsrPartitionCount", lambda: replicas.gauges.at_min_isr)
    read(SERVER, REPLICAS, "ReassigningPartitions", lambda: replicas.gauges.reassigning)
    read(SERVER, REPLICAS, "OfflineReplicaCount", lambda: len(replicas.logs.offline) + replicas.set_aside_count)
    read("klamm.server", "LogManager", "StrayLogCount", lambda: replicas.logs.stray_count)
    read(
        "klamm.server",
        "BackgroundTasks",
        "FailuresPerSec",
        lambda: replicas.guard.failures.total() + replicas.logs.guard.failures.total(),
    )
    read(SERVER, REPLICAS, "IsrShrinksPerSec", lambda: replicas.isr_writer.shrinks)
    read(SERVER, REPLICAS, "IsrExpandsPerSec", lambda: replicas.isr_writer.expansions)
    read(SERVER, REPLICAS, "FailedIsrUpdatesPerSec", lambda: replicas.isr_writer.failed_updates)
    read(
        SERVER,
        "ReplicaFetcherManager",
        "FailedPartitionsCount",
        lambda: replicas.fetchers.failed_count,
        clientId="Replica",
    )
    read(SERVER, "ReplicaFetcherManager", "MaxLag", lambda: replicas.fetchers.max_lag, clientId="Replica")
    read(SERVER, "ReplicaFetcherManager", "DeadThreadCount", lambda: replicas.fetchers.dead_count, clientId="Replica")
    replicas.logs.when_flush_took(metrics.timer(LOG, "LogFlushStats", "LogFlushRateAndTimeMs").update)
    for operation, purgatory in (
        ("Produce", replicas.waiting_produces),
        ("Fetch", replicas.waiting_fetches),
        ("DeleteRecords", replicas.waiting_deletions),
    ):
        read(
            SERVER,
            "DelayedOperationPurgatory",
            "PurgatorySize",
            lambda waiting=purgatory: len(waiting),  # type: ignore[misc]
            delayedOperation=operation,
        )
    read(SERVER, TOPICS, "BytesInPerSec", lambda: appends.bytes_in)
    read(SERVER, TOPICS, "MessagesInPerSec", lambda: appends.messages_in)
    read(SERVER, TOPICS, "TotalProduceRequestsPerSec", partial(_count_of, requests, ApiKey.PRODUCE))
    read(SERVER, TOPICS, "TotalFetchRequestsPerSec", partial(_count_of, requests, ApiKey.FETCH))
    read(SERVER, TOPICS, "FailedProduceRequestsPerSec", lambda: appends.failed_requests)
    read("klamm.server", "Producers", "refused-batches-count", lambda: appends.refused_producers)
    read(SERVER, TOPICS, "BytesOutPerSec", lambda: reads.bytes_out)
    read(SERVER, TOPICS, "ReplicationBytesOutPerSec", lambda: reads.replication_bytes_out)
    read(SERVER, TOPICS, "ReassignmentBytesOutPerSec", lambda: reads.reassignment_bytes_out)
    read(SERVER, TOPICS, "ReplicationBytesInPerSec", lambda: replicas.fetched_bytes.total)
    read(SERVER, TOPICS, "ReassignmentBytesInPerSec", lambda: replicas.fetched_bytes.reassignment)
    read(SERVER, TOPICS, "FailedFetchRequestsPerSec", lambda: reads.failed_requests)
    metrics.read_many(lambda: _of_topics(appends.traffic, reads.traffic))
    metrics.read_many(lambda: _of_logs(replicas))
    metrics.read_many(lambda: _of_partitions(replicas))


def _of_topics(produced: TopicTraffic, consumed: TopicTraffic) -> Iterator[tuple[MetricName, float]]:
    for topic, traffic in produced.topics.items():
        tags = (("topic", topic),)
        yield MetricName(SERVER, TOPICS, "BytesInPerSec", tags), traffic.bytes_in
        yield MetricName(SERVER, TOPICS, "MessagesInPerSec", tags), traffic.messages_in
    for topic, traffic in consumed.topics.items():
        yield MetricName(SERVER, TOPICS, "BytesOutPerSec", (("topic", topic),)), traffic.bytes_out


def _of_logs(replicas: ReplicaManager) -> Iterator[tuple[MetricName, float]]:
    """The size and the ends of each log. A broker with very many shows only the first ones."""
    for place, partition in islice(replicas.partitions.items(), LOGS_MAX):
        if partition.log is None:
            continue
        tags = (("partition", str(place.partition)), ("topic", place.topic))
        yield MetricName(LOG, "Log", "Size", tags), partition.log.size_bytes
        yield MetricName(LOG, "Log", "LogStartOffset", tags), partition.log.log_start_offset
        yield MetricName(LOG, "Log", "LogEndOffset", tags), partition.log.log_end_offset


def _of_partitions(replicas: ReplicaManager) -> Iterator[tuple[MetricName, float]]:
    """What a leader knows of its replicas. A broker with very many partitions shows only the first ones."""
    for place, partition in islice(replicas.partitions.items(), PARTITIONS_MAX):
        log = partition.log
        tags = (("partition", str(place.partition)), ("topic", place.topic))
        values = {
            "UnderReplicated": partition.is_under_replicated,
            "UnderMinIsr": partition.is_under_min_isr,
            "AtMinIsr": partition.is_at_min_isr,
            "InSyncReplicasCount": len(partition.isr) if partition.is_leader else 0,
            "ReplicasCount": len(partition.assignment.replicas) if partition.is_leader else 0,
            "LastStableOffsetLag": log.high_watermark - log.last_stable_offset if log is not None else 0,
        }
        for name, value in values.items():
            yield MetricName(CLUSTER, "Partition", name, tags), value


def register_cleaner_metrics(metrics: MetricsRegistry, logs: LogManager) -> None:
    """Names and units are Kafka's, including whole percents and seconds."""
    cleaner, read = logs.cleaner, metrics.read
    read(LOG, "LogCleaner", "max-buffer-utilization-percent", lambda: int(100 * cleaner.last.buffer_utilization))
    read(LOG, "LogCleaner", "cleaner-recopy-percent", lambda: int(100 * cleaner.last.recopy_ratio))
    read(LOG, "LogCleaner", "max-clean-time-secs", lambda: int(cleaner.last_seconds))
    read(LOG, "LogCleaner", "max-compaction-delay-secs", lambda: cleaner.max_overdue_ms // 1000)
    read(LOG, "LogCleaner", "DeadThreadCount", lambda: 0)  # a dead cleaner takes the broker down
    read(LOG, "LogCleanerManager", "max-dirty-percent", lambda: int(100 * cleaner.max_dirty_ratio))
    read(LOG, "LogCleanerManager", "time-since-last-run-ms", lambda: cleaner.ms_since_last_run)
    for directory in logs.directories:
        count, size = partial(cleaner.uncleanable_in, directory), partial(cleaner.uncleanable_bytes_in, directory)
        tag = {"logDirectory": directory.path}
        read(LOG, "LogCleanerManager", "uncleanable-partitions-count", lambda found=count: len(found()), **tag)  # type: ignore[misc]
        read(LOG, "LogCleanerManager", "uncleanable-bytes", size, **tag)


def _count_of(requests: Mapping[ApiKey, int], key: ApiKey) -> int:
    return requests.get(key, 0)


def register_fetch_session_metrics(metrics: MetricsRegistry, sessions: FetchSessions) -> None:
    read = partial(metrics.read, SERVER, "FetchSessionCache")
    read("NumIncrementalFetchSessions", lambda: len(sessions))
    read("NumIncrementalFetchPartitionsCached", lambda: sessions.partition_count)
    read("IncrementalFetchSessionEvictionsPerSec", lambda: sessions.evictions)
