"""Checks of topics, assignments and partition states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from klamm.admin.doctor.finding import Finding, Severity
from klamm.admin.doctor.observation import SETTLED_MS, Observation
from klamm.model.ids import NO_LEADER, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.wording import count
from klamm.zookeeper.znodes import config, document, partition_state, topic

ELECT = "klamm leaders elect --type preferred --all"
ELECT_UNCLEAN = "klamm leaders elect --type unclean --all"
REASSIGN = "klamm reassign execute PLAN"


def topics_are_readable(seen: Observation) -> Iterator[Finding]:
    for name in sorted(seen.tree.topics):
        path = topic.path(name)
        if path in seen.broken:
            cure = "restore the document from a backup, or from the assignment that the brokers still serve"
            yield Finding(Severity.CRITICAL, "topic-broken", path, seen.broken[path], cure)
    for partition in sorted(seen.tree.states):
        path = partition_state.path(partition)
        if path in seen.broken:
            cure = f"delete the znode {path}; the controller elects a leader again"
            yield Finding(Severity.CRITICAL, "state-broken", path, seen.broken[path], cure)


def assignments_are_sound(seen: Observation) -> Iterator[Finding]:
    for partition, assignment in seen.assignments.items():
        problem = _assignment_problem(assignment)
        if problem:
            path = topic.path(partition.topic)
            yield Finding(
                Severity.ERROR, "assignment-broken", path, f"partition {partition.partition} {problem}", REASSIGN
            )


def _assignment_problem(assignment: Assignment) -> str | None:
    replicas = assignment.replicas
    if not replicas:
        return "has no replicas"
    if len(set(replicas)) < len(replicas):
        return f"names a broker twice: {list(replicas)}"
    if not set(assignment.adding) | set(assignment.removing) <= set(replicas):
        return "moves replicas that it does not have"
    return None


def brokers_exist(seen: Observation) -> Iterator[Finding]:
    """Replicas on brokers that are not registered, one finding per broker."""
    replicas = Counter(broker for assignment in seen.assignments.values() for broker in assignment.replicas)
    leading = Counter(state.leader for state in seen.states.values())
    for broker in sorted(set(replicas) - set(seen.sessions)):
        evidence = (
            f"broker {broker} is not registered, has {count(replicas[broker], 'replica')} and leads {leading[broker]}"
        )
        cure = f"start broker {broker}, or move its replicas: klamm reassign plan FILE"
        severity = Severity.ERROR if leading[broker] else Severity.WARNING
        yield Finding(severity, "broker-gone", f"/brokers/ids/{broker}", evidence, cure)


def states_are_there(seen: Observation) -> Iterator[Finding]:
    for partition, raw in seen.tree.states.items():
        node = seen.tree.topics[partition.topic]
        is_being_deleted = partition.topic in seen.tree.deletions
        if not raw.exists and seen.age_ms(node) > SETTLED_MS and not is_being_deleted:
            evidence = "absent, although the partition is assigned: it has no leader, and its data may still be on disk"
            cure = "klamm controller move: the next controller writes the state again; do not delete the topic"
            yield Finding(Severity.CRITICAL, "state-lost", partition_state.path(partition), evidence, cure)


def states_fit(seen: Observation) -> Iterator[Finding]:
    for partition, state in seen.states.items():
        assignment = seen.assignments.get(partition)
        if assignment is None or partition.topic in seen.tree.deletions:
            continue  # a deletion takes leaders and ISRs apart
        for code, severity, evidence, cure in _state_problems(state, assignment, seen):
            yield Finding(severity, code, partition_state.path(partition), evidence, cure)


def _state_problems(
    state: LeaderAndIsr, assignment: Assignment, seen: Observation
) -> Iterator[tuple[str, Severity, str, str]]:
    leader, isr = state.leader, state.isr
    if leader == NO_LEADER:
        yield from _leaderless(state, assignment, seen)
        return
    if isr and leader not in isr:
        yield "leader-outside-isr", Severity.CRITICAL, f"leader {leader} is not in the ISR {list(isr)}", ELECT
    if leader not in assignment.replicas:
        evidence = f"leader {leader} is not one of the replicas {list(assignment.replicas)}"
        yield "leader-outside-assignment", Severity.CRITICAL, evidence, ELECT
    if not isr:
        yield "isr-empty", Severity.CRITICAL, "the ISR is empty", ELECT
    elif len(set(isr)) < len(isr):
        yield "isr-duplicate", Severity.ERROR, f"the ISR names a broker twice: {list(isr)}", ELECT
    strangers = sorted(set(isr) - set(assignment.replicas) - {leader})
    if strangers:
        evidence = f"the ISR has {strangers}, which are not replicas {list(assignment.replicas)}"
        yield "isr-outside-assignment", Severity.ERROR, evidence, ELECT


def _leaderless(
    state: LeaderAndIsr, assignment: Assignment, seen: Observation
) -> Iterator[tuple[str, Severity, str, str]]:
    live = sorted(broker for broker in state.isr if broker in seen.sessions)
    if live:
        evidence = f"no leader, although {live} of the ISR {list(state.isr)} are alive"
        yield "leader-missing", Severity.CRITICAL, evidence, ELECT
        return
    others = sorted(broker for broker in assignment.replicas if broker in seen.sessions)
    evidence = f"no leader: no broker of the ISR {list(state.isr)} is alive"
    cure = f"start one of {list(state.isr)}"
    if others:
        cure += f"; or lose data: {ELECT_UNCLEAN} (replicas {others} are alive)"
    yield "offline", Severity.CRITICAL, evidence, cure


def nothing_is_orphaned(seen: Observation) -> Iterator[Finding]:
    for name, partitions in sorted(seen.tree.partitions.items()):
        if topic.path(name) in seen.broken or seen.age_ms(seen.tree.topics[name]) <= SETTLED_MS:
            continue
        for label in sorted(partitions):
            path = f"{partition_state.partitions_path(name)}/{label}"
            number = document.natural(label)
            cure = f"zookeeper-shell HOST deleteall {path}"
            if number is None or str(number) != label:
                yield Finding(Severity.ERROR, "duplicate-name", path, "is not the plain number of a partition", cure)
            elif TopicPartition(name, number) not in seen.assignments:
                evidence = "the assignment of the topic does not have this partition"
                yield Finding(Severity.WARNING, "partition-orphaned", path, evidence, cure)
    for name in sorted(set(seen.tree.configured_topics) - set(seen.tree.topics)):
        evidence = "configures a topic that does not exist; the next topic of that name would inherit it"
        cure = f"zookeeper-shell HOST delete {config.topic_path(name)}"
        yield Finding(Severity.WARNING, "config-orphaned", config.topic_path(name), evidence, cure)
