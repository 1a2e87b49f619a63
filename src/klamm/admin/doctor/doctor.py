"""All checks, in the order in which an operator should read them: the cluster first, then its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from klamm.admin.doctor import controller_checks, partition_checks, procedure_checks
from klamm.admin.doctor.finding import Finding
from klamm.admin.doctor.observation import Observation, observe
from klamm.zookeeper.znodes.kafka_tree import KafkaTree

Check = Callable[[Observation], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    controller_checks.is_kafka,
    controller_checks.has_controller,
    controller_checks.epoch_is_right,
    controller_checks.registrations_are_sound,
    controller_checks.migration_is_complete,
    controller_checks.quarantines,
    controller_checks.acls_allow_writes,
    controller_checks.notifications_are_taken,
    partition_checks.topics_are_readable,
    partition_checks.brokers_exist,
    partition_checks.states_are_there,
    partition_checks.states_fit,
    partition_checks.assignments_are_sound,
    partition_checks.nothing_is_orphaned,
    procedure_checks.deletions_go_on,
    procedure_checks.reassignments_go_on,
    procedure_checks.requested_moves_are_possible,
)


def examine(tree: KafkaTree) -> list[Finding]:
    """The findings, worst first. Empty for a healthy cluster."""
    seen = observe(tree)
    found = [finding for check in CHECKS for finding in check(seen)]
    return sorted(found, key=lambda finding: finding.severity)
