"""Partition state and replica assignment, as the znodes hold them.

The controller interns both, because a cluster of 100,000 partitions has only a few hundred distinct ones. So they are
plain immutable tuples: cheap to hash, to compare and to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch


class LeaderAndIsr(NamedTuple):
    """The content of /brokers/topics/<t>/partitions/<p>/state, without the znode's version."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch
    """The epoch of the controller that wrote this state, not of the one that reads it."""


class Assignment(NamedTuple):
    """The replicas of one partition. During a reassignment: all of them, and those being added and removed (KIP-455).

    >>> Assignment((1, 2, 3, 4)).reassign_to((4, 2, 5, 3))
    Assignment(replicas=(4, 2, 5, 3, 1), adding=(5,), removing=(1,))
    """

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def original_replicas(self) -> tuple[BrokerId, ...]:
        return tuple(b for b in self.replicas if b not in self.adding)

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        return tuple(b for b in self.replicas if b not in self.removing)

    def reassign_to(self, target: Sequence[BrokerId]) -> Assignment:
        """Target replicas come first, in the requested order. A running reassignment keeps its original replicas, not
        its intermediate ones."""
        original = self.original_replicas
        replicas = tuple(dict.fromkeys((*target, *original)))
        return Assignment(
            replicas,
            adding=tuple(b for b in replicas if b not in original),
            removing=tuple(b for b in replicas if b not in target),
        )

    def cancelled(self) -> Assignment:
        return Assignment(self.original_replicas)
