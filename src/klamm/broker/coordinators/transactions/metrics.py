"""The transaction coordinator's gauges and counters under Kafka's names."""

from __future__ import annotations

from klamm.broker.coordinators.transactions.coordinator import TransactionCoordinator
from klamm.telemetry.metrics import MetricsRegistry

COORDINATOR = ("kafka.server", "transaction-coordinator-metrics")
CHANNELS = ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")
PURGATORY = {"delayedOperation": "txn-marker-purgatory"}
OURS = ("klamm.server", "transaction-coordinator-metrics")


def register_transaction_metrics(metrics: MetricsRegistry, transactions: TransactionCoordinator) -> None:
    read, markers = metrics.read, transactions.markers
    read(*COORDINATOR, "partition-load-time-max", lambda: transactions.load_ms_max)
    read(*COORDINATOR, "partition-load-time-avg", lambda: transactions.load_ms_sum / max(1, transactions.loads))
    read(*CHANNELS, "UnknownDestinationQueueSize", lambda: markers.waiting_count)
    read(*CHANNELS, "LogAppendRetryQueueSize", lambda: transactions.completions_waiting)
    read("kafka.server", "DelayedOperationPurgatory", "PurgatorySize", lambda: markers.open_count, **PURGATORY)
    read(*OURS, "damaged-records-count", lambda: transactions.damaged)
    read(*OURS, "fenced-markers-count", lambda: markers.fenced)
    read(*OURS, "transactional-id-count", lambda: transactions.id_count)
    read(*OURS, "refused-transactional-ids-count", lambda: transactions.refused_ids)
