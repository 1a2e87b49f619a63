"""What an election of a partition leader may cost."""

from __future__ import annotations

from enum import Enum


class UncleanElection(Enum):
    """May a replica outside the ISR lead, although acknowledged records may be lost?"""

    FORBIDDEN = False
    ALLOWED = True
