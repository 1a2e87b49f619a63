"""Plans a reassignment: even bytes, replicas and leaders, in racks, with few bytes to copy. Pure and repeatable.

The same input gives the same plan, and planning again on the result gives an empty plan. Hard constraints come first
(drained brokers, replication factor, racks); then bytes, the number of replicas, and leaders. A plan that would gain
nothing is not made, and says so.

>>> brokers = [PlannedBroker(1), PlannedBroker(2)]
>>> crowded = [PartitionLoad("t", n, (1,), 100) for n in range(4)]
>>> [(change.partition, change.after) for change in plan(crowded, brokers).changes]
[(0, (2,)), (1, (2,))]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from klamm.admin.balancing.even_bytes import EvenBytes, water_line
from klamm.admin.balancing.even_leaders import even_leaders
from klamm.admin.balancing.load import Change, Goals, PartitionLoad, Plan, PlannedBroker, loads
from klamm.admin.balancing.placement_state import PlacementState
from klamm.admin.balancing.required_moves import change_replication_factor, leave_brokers, repair_racks
from klamm.model.errors import KlammError

ROUNDS_MAX: Final = 10
COUNT_ROUNDS_MAX: Final = 4
COUNT_GAIN_MIN: Final = 0.02
"""A round for the number of replicas must bring at least this, or it is taken back."""
GIANTS_NAMED: Final = 5


class PlanRefused(KlammError):
    """No plan can be made; the message says why and what to do."""


def plan(partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals | None = None) -> Plan:
    """Raises PlanRefused. `brokers` are the live ones, drained ones included."""
    goals = goals if goals is not None else Goals()
    _check(partitions, brokers, goals)
    state = PlacementState(partitions, brokers, goals.drained)
    reasons: list[str] = []
    if goals.replication_factor is not None:
        reasons += change_replication_factor(state, goals.replication_factor)
    reasons += leave_brokers(state)
    reasons += repair_racks(state)
    state, unmet = _balance_until_final(state, partitions, brokers, goals)
    reasons += unmet or _giants(state)
    even_leaders(state.replicas, state.targets)
    changes = tuple(_changes(partitions, state.replicas))
    if not changes and not reasons:
        reasons.append(f"every broker is within {goals.start_beyond:.0%} of its even share, and leaders are even")
    after = [entry._replace(replicas=tuple(new)) for entry, new in zip(partitions, state.replicas, strict=True)]
    ids = [broker.id for broker in brokers]
    return Plan(changes, loads(partitions, ids), loads(after, ids), tuple(reasons))


def _check(partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals) -> None:
    ids = {broker.id for broker in brokers}
    unknown = sorted(goals.drained - ids)
    if unknown:
        raise PlanRefused(f"cannot drain brokers {unknown}: no such brokers in the cluster")
    if not ids - goals.drained:
        raise PlanRefused("no broker would be left: every broker is to be drained")
    if goals.replication_factor is not None and not 0 < goals.replication_factor <= len(ids - goals.drained):
        raise PlanRefused(
            f"replication factor {goals.replication_factor} needs as many brokers; {len(ids - goals.drained)} are left"
        )
    if any(broker.weight <= 0 for broker in brokers):
        raise PlanRefused("the weight of a broker must be above 0")
    racks = [broker.rack is not None for broker in brokers]
    if any(racks) and not all(racks):
        without = sorted(broker.id for broker in brokers if broker.rack is None)
        raise PlanRefused(f"brokers {without} name no rack, but others do: set broker.rack on all or on none")
    for entry in partitions:
        missing = [broker for broker in entry.replicas if broker not in ids]
        if missing:
            raise PlanRefused(f"{entry} has replicas on brokers {missing}, which are not alive: start them first")
        if len(set(entry.replicas)) < len(entry.replicas) or not entry.replicas:
            raise PlanRefused(f"{entry} has the replicas {list(entry.replicas)}: each broker once, at least one")


def _balance_until_final(
    state: PlacementState, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals
) -> tuple[PlacementState, list[str]]:
    """Repeat until nothing changes, so that a second plan finds nothing to do."""
    unmet: list[str] = []
    for _ in range(ROUNDS_MAX):
        before = [list(replicas) for replicas in state.replicas]
        state, unmet = _balance(state, partitions, brokers, goals)
        if state.replicas == before:
            break
    return state, unmet


def _balance(
    state: PlacementState, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], goals: Goals
) -> tuple[PlacementState, list[str]]:
    level = water_line(state)
    step = EvenBytes(state, level, goals.tolerance, goals.count_tolerance)
    if step.deviation() <= goals.start_beyond and not goals.is_forced:
        return state, []
    step.separate_large()
    step.run()
    if step.deviation() > goals.tolerance:  # bytes matter more than the number of replicas
        EvenBytes(state, level, goals.tolerance, count_tolerance=inf).run()
    for _ in range(COUNT_ROUNDS_MAX):
        if step.count_deviation() <= goals.count_tolerance:
            break
        current = [entry._replace(replicas=tuple(new)) for entry, new in zip(partitions, state.replicas, strict=True)]
        tried = PlacementState(current, brokers, goals.drained)
        attempt = EvenBytes(tried, level, goals.tolerance, goals.count_tolerance)
        attempt.even_counts()
        attempt.run()
        is_better = attempt.count_deviation() <= step.count_deviation() - COUNT_GAIN_MIN
        if not is_better or attempt.deviation() > max(step.deviation(), goals.tolerance):
            break
        state, step = tried, attempt
    reasons = []
    if step.deviation() > goals.start_beyond:
        named = ", ".join(state.name(index) for index in level.giants[:GIANTS_NAMED])
        cause = f"larger than an even share: {named}" if named else "no legal move is small enough"
        reasons.append(f"a broker stays {step.deviation():.1%} from its even share: {cause}")
    return state, reasons


def _giants(state: PlacementState) -> list[str]:
    """Why brokers stay above the average although the rest is even."""
    giants = [state.name(index) for index in water_line(state).giants]
    if not giants:
        return []
    more = f" and {len(giants) - GIANTS_NAMED} more" if len(giants) > GIANTS_NAMED else ""
    named = ", ".join(giants[:GIANTS_NAMED]) + more
    return [f"brokers with a partition larger than an even share hold more than the others: {named}"]


def _changes(partitions: Iterable[PartitionLoad], planned: Iterable[list[int]]) -> Iterable[Change]:
    for entry, replicas in zip(partitions, planned, strict=True):
        if tuple(replicas) != entry.replicas:
            yield Change(entry.topic, entry.partition, entry.replicas, tuple(replicas), entry.size_bytes)
