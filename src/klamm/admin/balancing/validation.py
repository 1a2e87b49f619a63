"""Judges a plan without the planner: a second, naive look at every rule, run before a plan is written or executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from klamm.admin.balancing.load import Goals, PartitionLoad, Plan, PlannedBroker, loads


def violations(
    plan: Plan, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals
) -> list[str]:
    """Everything that is wrong with the plan; empty for a good one."""
    return [*_of_changes(plan, partitions, brokers, goals), *_of_result(plan, partitions, brokers, goals)]


def _of_changes(
    plan: Plan, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals
) -> Iterator[str]:
    known = {(entry.topic, entry.partition): entry for entry in partitions}
    allowed = {broker.id for broker in brokers} - goals.drained
    for (topic, partition), times in Counter((c.topic, c.partition) for c in plan.changes).items():
        if times > 1:
            yield f"{topic}-{partition} is in the plan {times} times"
    for change in plan.changes:
        entry = known.get((change.topic, change.partition))
        if entry is None:
            yield f"{change.topic}-{change.partition} does not exist"
            continue
        if change.before != entry.replicas or change.size_bytes != entry.size_bytes:
            yield f"{entry} has changed since the plan was made"
        if len(set(change.after)) < len(change.after):
            yield f"{entry} would have two replicas on one broker"
        added = set(change.after) - set(change.before)
        if not added <= allowed:
            yield f"{entry} would go to brokers {sorted(added - allowed)}, which may not have it"
        if len(change.after) != (goals.replication_factor or len(change.before)):
            yield f"{entry} would have {len(change.after)} replicas"


def _of_result(
    plan: Plan, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals
) -> Iterator[str]:
    planned = {(change.topic, change.partition): change.after for change in plan.changes}
    after = [e._replace(replicas=planned.get((e.topic, e.partition), e.replicas)) for e in partitions]
    if loads(after, [broker.id for broker in brokers]) != plan.after:
        yield "the loads that the plan promises are not those of its changes"
    left = len(brokers) - len(goals.drained)
    for entry in after:
        staying = sorted(goals.drained & set(entry.replicas))
        if staying and len(entry.replicas) <= left:
            yield f"{entry} would stay on brokers {staying}, which are to be drained"
    rack = {broker.id: broker.rack for broker in brokers}
    racks = {broker.rack for broker in brokers if broker.id not in goals.drained}
    for old, new in zip(partitions, after, strict=True):
        if None in racks:
            break
        spread = len({rack[broker] for broker in new.replicas})
        if spread < min(len({rack[b] for b in old.replicas}), len(new.replicas), len(racks)):
            yield f"{new} would be in fewer racks than before"
