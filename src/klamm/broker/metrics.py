"""The broker's gauges and counters under Kafka's names. The data path only counts; a scrape reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from klamm.broker.appends import Appends
from klamm.broker.handlers.dispatch import served
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.log.log_manager import LogManager
from klamm.telemetry.metrics import MetricsRegistry
from klamm.wire.apis import ApiKey

SERVER = "kafka.server"
LOG = "kafka.log"
REPLICAS = "ReplicaManager"
TOPICS = "BrokerTopicMetrics"


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
    read(SERVER, REPLICAS, "OfflineReplicaCount", lambda: replicas.logs.offline_count)
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
    for operation, purgatory in (("Produce", replicas.waiting_produces), ("Fetch", replicas.waiting_fetches)):
        read(
            SERVER,
            "DelayedOperationPurgatory",
            "PurgatorySize",
            lambda waiting=purgatory: len(waiting),  # type: ignore[misc]
            delayedOperation=operation,
        )
    read(SERVER, TOPICS, "BytesInPerSec", lambda: appends.bytes_in)
    read(SERVER, TOPICS, "FailedProduceRequestsPerSec", lambda: appends.failed_requests)
    read(SERVER, TOPICS, "BytesOutPerSec", lambda: reads.bytes_out)
    read(SERVER, TOPICS, "ReplicationBytesOutPerSec", lambda: reads.replication_bytes_out)
    read(SERVER, TOPICS, "FailedFetchRequestsPerSec", lambda: reads.failed_requests)


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
