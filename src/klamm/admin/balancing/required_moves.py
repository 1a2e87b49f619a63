"""Moves that the goals demand whatever the load: drained and lost brokers, another replication factor, racks.

Each replica goes to the emptiest broker that may have it, largest first. A replica that no broker may take stays where
it is, and the reason is returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from klamm.admin.balancing.placement_state import PlacementState


def leave_brokers(state: PlacementState) -> Iterator[str]:
    """Empty the brokers that must not keep replicas."""
    staying = set(state.targets)
    for source in sorted(set(state.load) - staying):
        for index in state.held_by(source):
            target = _first_legal(state, index, source)
            if target is None:
                yield f"{state.name(index)} cannot leave broker {source}: no other broker may take it"
            else:
                state.move(index, source, target)


def change_replication_factor(state: PlacementState, factor: int) -> Iterator[str]:
    """A replica on a broker that must not keep it goes first, else a follower: then the leader stays."""
    staying = set(state.targets)
    order = sorted(range(len(state.sizes)), key=lambda index: (-state.sizes[index], index))
    for index in order:
        while len(state.replicas[index]) > factor:
            leaving = [broker for broker in state.replicas[index] if broker not in staying]
            state.drop(index, state.emptiest(leaving or state.replicas[index][1:])[-1])
        while len(state.replicas[index]) < factor:
            target = _first_legal(state, index, None)
            if target is None:
                yield f"{state.name(index)} cannot have {factor} replicas: there are too few brokers"
                break
            state.add(index, target)


def repair_racks(state: PlacementState) -> Iterator[str]:
    """Separate replicas that share a rack although another rack has none."""
    for index in range(len(state.sizes)):
        while (source := state.misplaced(index)) is not None:
            target = _first_legal(state, index, source, other_rack=True)
            if target is None:
                yield f"{state.name(index)} stays in one rack: no broker of another rack may take it"
                break
            state.move(index, source, target)


def _first_legal(state: PlacementState, index: int, source: int | None, *, other_rack: bool = False) -> int | None:
    for target in state.emptiest(state.targets):
        if state.is_legal(index, None if other_rack else source, target):
            return target
    return None
