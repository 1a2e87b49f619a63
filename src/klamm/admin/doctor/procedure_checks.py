"""Checks of deletions and reassignments: what is stuck, and what blocks it."""

from __future__ import annotations

from collections.abc import Iterator

from klamm.admin.doctor.finding import Finding, Severity
from klamm.admin.doctor.observation import STUCK_MS, Observation
from klamm.admin.pending_deletions import waits_for
from klamm.model.errors import ZNodeError
from klamm.model.ids import TopicPartition
from klamm.model.partition import Assignment
from klamm.zookeeper.znodes import delete_topics, reassign_partitions, topic


def deletions_go_on(seen: Observation) -> Iterator[Finding]:
    marked: dict[str, dict[int, Assignment]] = {name: {} for name in seen.tree.deletions}
    for (name, partition), assignment in seen.assignments.items():
        if name in marked:
            marked[name][partition] = assignment
    for name, node in sorted(seen.tree.deletions.items()):
        path, partitions = delete_topics.path(name), marked[name]
        dead = sorted({broker for a in partitions.values() for broker in a.replicas} - set(seen.sessions))
        if seen.age_ms(node) <= STUCK_MS and not dead:
            continue  # deleting takes a while
        exists = name in seen.tree.topics
        blocker = waits_for(partitions if exists else None, seen.sessions, has_controller=seen.controller is not None)
        cure = f"start brokers {dead}" if dead else "klamm controller move: the controller does not go on"
        yield Finding(Severity.ERROR, "deletion-stuck", path, f"waits for {blocker}", cure)


def reassignments_go_on(seen: Observation) -> Iterator[Finding]:
    for partition, assignment in seen.assignments.items():
        if not assignment.is_being_reassigned:
            continue
        path = topic.path(partition.topic)
        dead = sorted(broker for broker in assignment.adding if broker not in seen.sessions)
        state = seen.states.get(partition)
        missing = sorted(set(assignment.target_replicas) - set(state.isr if state is not None else ()))
        if dead:
            evidence = f"partition {partition.partition} moves to brokers {dead}, which are not registered"
            cure = f"start brokers {dead}, or klamm reassign cancel PLAN"
            yield Finding(Severity.ERROR, "reassignment-stuck", path, evidence, cure)
        elif not missing and seen.age_ms(seen.tree.topics[partition.topic]) > STUCK_MS:
            evidence = f"partition {partition.partition} has all its new replicas in sync, but the move does not end"
            cure = "klamm controller move: the controller does not go on"
            yield Finding(Severity.ERROR, "reassignment-stuck", path, evidence, cure)


def requested_moves_are_possible(seen: Observation) -> Iterator[Finding]:
    node = seen.tree.reassignment
    if node is None:
        return
    path = reassign_partitions.PATH
    cure = f"zookeeper-shell HOST delete {path}, then klamm reassign execute PLAN"
    try:
        targets = reassign_partitions.decode(path, node.data)
    except ZNodeError as error:
        yield Finding(Severity.ERROR, "reassignment-broken", path, error.reason, cure)
        return
    for partition, replicas in sorted(targets.items()):
        problem = _impossible(seen, partition, replicas)
        if problem:
            yield Finding(Severity.ERROR, "reassignment-stuck", path, f"{partition} {problem}", cure)


def _impossible(seen: Observation, partition: TopicPartition, replicas: tuple[int, ...]) -> str | None:
    if partition not in seen.assignments:
        return "does not exist"
    dead = sorted(set(replicas) - set(seen.sessions))
    if dead:
        return f"waits for brokers {dead}, which are not registered"
    return None
