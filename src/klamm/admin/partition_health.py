"""What may be wrong with a partition, as its metadata shows it. Pure.

>>> sorted(trouble.value for trouble in troubles(leader=2, replicas=[1, 2, 3], isr=[2], min_isr=2))
['not-preferred', 'under-min-isr', 'under-replicated']
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum


class Trouble(StrEnum):
    OFFLINE = "offline"
    """It has no leader: it can neither be read nor written."""
    UNDER_MIN_ISR = "under-min-isr"
    """Fewer in-sync replicas than min.insync.replicas: producers with acks=all are refused."""
    UNDER_REPLICATED = "under-replicated"
    """A replica is not in sync."""
    NOT_PREFERRED = "not-preferred"
    """Another replica than the first one leads."""


def troubles(
    *, leader: int, replicas: Sequence[int], isr: Collection[int], min_isr: int = 1, adding: Collection[int] = ()
) -> frozenset[Trouble]:
    """Replicas that are still being added do not count as missing, because a move is not a failure."""
    found = set()
    if leader < 0:
        found.add(Trouble.OFFLINE)
    if len(isr) < min_isr:
        found.add(Trouble.UNDER_MIN_ISR)
    if not set(replicas) - set(adding) <= set(isr):
        found.add(Trouble.UNDER_REPLICATED)
    if leader >= 0 and replicas and leader != replicas[0]:
        found.add(Trouble.NOT_PREFERRED)
    return frozenset(found)
