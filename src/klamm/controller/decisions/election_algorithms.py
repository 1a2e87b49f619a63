"""Which replica leads: four pure rules over the assignment (AR), the ISR and the live brokers.

Each goes through the replicas in the order of the assignment, not of the ISR, and returns the leader with the new ISR,
or the reason why no broker can lead. Leader epoch, znode version and metrics are left to the caller. The rules are
those of Kafka's `Election` and `PartitionLeaderElectionAlgorithms`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from klamm.model.elections import UncleanElection
from klamm.model.ids import BrokerId


class Elected(NamedTuple):
    leader: BrokerId
    isr: tuple[BrokerId, ...]
    unclean: bool = False


class NoLeader(NamedTuple):
    reason: str


def elect_offline(
    assigned: Sequence[BrokerId], isr: Sequence[BrokerId], live: Container[BrokerId], unclean: UncleanElection
) -> Elected | NoLeader:
    """First live member of the ISR in AR order; a replica outside the ISR only if the topic allows data loss."""
    for broker in assigned:
        if broker in live and broker in isr:
            return Elected(broker, tuple(b for b in isr if b in live))
    if any(broker in live for broker in isr):
        return NoLeader(f"live ISR members of {list(isr)} are not assigned: AR {list(assigned)}")
    if unclean is UncleanElection.FORBIDDEN:
        return NoLeader(f"no live replica in ISR {list(isr)}, unclean election is off")
    for broker in assigned:
        if broker in live:
            return Elected(broker, (broker,), unclean=True)
    return NoLeader(f"no live replica in AR {list(assigned)}")


def elect_for_reassignment(
    target: Sequence[BrokerId], isr: Sequence[BrokerId], live: Container[BrokerId]
) -> Elected | NoLeader:
    """First live member of the ISR among the target replicas; the ISR stays."""
    for broker in target:
        if broker in live and broker in isr:
            return Elected(broker, tuple(isr))
    return NoLeader(f"no target replica of {list(target)} is live and in ISR {list(isr)}")


def elect_preferred(
    assigned: Sequence[BrokerId], isr: Sequence[BrokerId], live: Container[BrokerId]
) -> Elected | NoLeader:
    """Only the head of the assignment; the ISR stays."""
    if not assigned:
        return NoLeader("no replica is assigned")
    preferred = assigned[0]
    if preferred in live and preferred in isr:
        return Elected(preferred, tuple(isr))
    return NoLeader(f"preferred replica {preferred} is not both live and in ISR {list(isr)}")


def elect_for_controlled_shutdown(
    assigned: Sequence[BrokerId],
    isr: Sequence[BrokerId],
    live_or_shutting_down: Container[BrokerId],
    shutting_down: Container[BrokerId],
) -> Elected | NoLeader:
    """First member of the ISR that is not shutting down; those that are leave the ISR at once."""
    for broker in assigned:
        if broker in live_or_shutting_down and broker in isr and broker not in shutting_down:
            return Elected(broker, tuple(b for b in isr if b not in shutting_down))
    return NoLeader(f"no replica of AR {list(assigned)} is in ISR {list(isr)}, live and not shutting down")
