"""Partition state and replica assignment, as the znodes hold them.

Both are interned by the controller (a cluster of 100,000 partitions has a few hundred distinct ones), so they are plain
immutable tuples: cheap to hash, to compare and to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch


class LeaderAndIsr(NamedTuple):
    """Content of /brokers/topics/<t>/partitions/<p>/state. The znode's version travels beside it, not in it."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch
    """Epoch of the controller that wrote this state, not of the one that reads it."""


class Assignment(NamedTuple):
    """Replicas of one partition; during a reassignment the full list with what is being added and removed (KIP-455).

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
        """Target first, in the asked order; a running reassignment keeps its origin, not its intermediate state."""
        original = self.original_replicas
        replicas = tuple(dict.fromkeys((*target, *original)))
        return Assignment(
            replicas,
            adding=tuple(b for b in replicas if b not in original),
            removing=tuple(b for b in replicas if b not in target),
        )

    def cancelled(self) -> Assignment:
        return Assignment(self.original_replicas)
