"""The group coordinator's gauges and counters under Kafka's names."""

from __future__ import annotations

from functools import partial

from klamm.broker.coordinators.groups.coordinator import GroupCoordinator
from klamm.broker.coordinators.groups.events import TimerKind
from klamm.broker.coordinators.groups.group import State
from klamm.telemetry.metrics import MetricsRegistry

MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
COORDINATOR = ("kafka.server", "group-coordinator-metrics")


def register_group_metrics(metrics: MetricsRegistry, groups: GroupCoordinator) -> None:
    read, registry = metrics.read, groups.registry
    commits, loading, execution = groups.commits, groups.loading, groups.execution

    def in_state(state: State) -> int:
        return sum(group.is_in(state) for group in registry.groups.values())

    read(*MANAGER, "NumGroups", lambda: len(registry.groups))
    read(*MANAGER, "NumOffsets", lambda: sum(len(group.offsets.committed) for group in registry.groups.values()))
    for state in State:
        read(*MANAGER, f"NumGroups{state.value}", partial(in_state, state))
    read(*COORDINATOR, "offset-commit-count", lambda: commits.committed)
    read(*COORDINATOR, "offset-expiration-count", lambda: commits.expired)
    read(*COORDINATOR, "offset-deletion-count", lambda: commits.deleted)
    read(*COORDINATOR, "group-completed-rebalance-count", lambda: execution.completed_rebalances)
    read(*COORDINATOR, "partition-load-time-max", lambda: max(loading.load_times_ms, default=0.0))
    read(
        *COORDINATOR,
        "partition-load-time-avg",
        lambda: sum(loading.load_times_ms) / max(1, len(loading.load_times_ms)),
    )
    read("klamm.server", "group-coordinator-metrics", "damaged-records-count", lambda: loading.damaged)
    read("klamm.server", "group-coordinator-metrics", "held-bytes", lambda: registry.held_bytes)
    read("klamm.server", "group-coordinator-metrics", "refused-for-size-count", lambda: registry.refused)
    for operation, kinds in (("Heartbeat", (TimerKind.SESSION, TimerKind.PENDING)), ("Rebalance", (TimerKind.JOIN,))):
        read(
            "kafka.server",
            "DelayedOperationPurgatory",
            "PurgatorySize",
            partial(execution.waiting, kinds),
            delayedOperation=operation,
        )
