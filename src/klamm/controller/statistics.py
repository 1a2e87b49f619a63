"""What a controller reports about itself: statistics for operators and tests, and the gauges under Kafka's names.

The gauges are computed when they are scraped. Without a term they are all zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from klamm.controller.context.controller_context import Counts
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.telemetry.metrics import Meter, MetricsRegistry

GROUP: Final = "kafka.controller"
TYPE: Final = "KafkaController"
STATS: Final = "ControllerStats"
CHANNELS: Final = "ControllerChannelManager"
ELECTION: Final = ("klamm.controller", "ControllerElection")
MOVED: Final = "MovedPerSec"
HEALED: Final = "HealedPerSec"
CHANNEL_FAILURES: Final = "ChannelFailuresPerSec"
QUARANTINED: Final = "QuarantinedCount"
GAUGES: Final = {
    "GlobalTopicCount": "topics",
    "GlobalPartitionCount": "partitions",
    "OfflinePartitionsCount": "offline_partitions",
    "PreferredReplicaImbalanceCount": "preferred_replica_imbalance",
    "TopicsToDeleteCount": "topics_to_delete",
    "ReplicasToDeleteCount": "replicas_to_delete",
    "TopicsIneligibleToDeleteCount": "topics_ineligible_to_delete",
    "ReplicasIneligibleToDeleteCount": "replicas_ineligible_to_delete",
    "SuspectBrokersCount": "suspects",
}


class ControllerStatistics(NamedTuple):
    is_active: bool
    active_controller_id: BrokerId | None
    """None while no controller is known."""
    controller_epoch: ControllerEpoch
    """0 unless this controller is active."""
    live_brokers: tuple[BrokerId, ...]
    shutting_down: tuple[BrokerId, ...]
    queue_size: int
    counts: Counts
    deletions: tuple[tuple[str, str], ...]
    """Topics being deleted and what each waits for."""
    reassignments: tuple[tuple[str, str], ...]
    """Partitions being reassigned and what each waits for."""
    schedule: tuple[tuple[str, str], ...]
    """Periodic tasks, and how often each runs or why it does not."""
    quarantined: tuple[tuple[str, str], ...]
    """Znodes that made a controller fail and are skipped until they change, with the failure."""


class ElectionMeters:
    """Take-overs, repairs of edited znodes, channels that failed unexpectedly. Kafka has none of them."""

    def __init__(self, metrics: MetricsRegistry) -> None:
        self._metrics = metrics

    @property
    def moved(self) -> Meter:
        return self._metrics.meter(*ELECTION, MOVED)

    @property
    def healed(self) -> Meter:
        return self._metrics.meter(*ELECTION, HEALED)

    @property
    def channel_failures(self) -> Meter:
        return self._metrics.meter(*ELECTION, CHANNEL_FAILURES)


def register_gauges(
    metrics: MetricsRegistry,
    *,
    is_active: Callable[[], bool],
    state: Callable[[], int],
    counts: Callable[[], Counts],
    quarantined: Callable[[], int],
) -> None:
    def count_of(field: str) -> float:
        return float(getattr(counts(), field))

    metrics.meter(GROUP, STATS, "UncleanLeaderElectionsPerSec")
    for name in (MOVED, HEALED, CHANNEL_FAILURES):
        metrics.meter(*ELECTION, name)
    metrics.read(*ELECTION, QUARANTINED, lambda: float(quarantined()))
    metrics.read(GROUP, TYPE, "ActiveControllerCount", lambda: float(is_active()))
    metrics.read(GROUP, TYPE, "ControllerState", lambda: float(state()))
    metrics.read(GROUP, CHANNELS, "TotalQueueSize", lambda: 0.0)  # until a term opens its channels
    for name, field in GAUGES.items():
        metrics.read(GROUP, TYPE, name, partial(count_of, field))


def remove_gauges(metrics: MetricsRegistry) -> None:
    for name in ("ActiveControllerCount", "ControllerState", *GAUGES):
        metrics.remove(GROUP, TYPE, name)
    metrics.remove(GROUP, STATS, "UncleanLeaderElectionsPerSec")
    metrics.remove(GROUP, CHANNELS, "TotalQueueSize")
    for name in (MOVED, HEALED, CHANNEL_FAILURES, QUARANTINED):
        metrics.remove(*ELECTION, name)
