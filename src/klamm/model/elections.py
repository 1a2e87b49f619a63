"""What an election of a partition leader may cost."""

from __future__ import annotations

from enum import Enum


class UncleanElection(Enum):
    """May a replica outside the ISR lead, at the price of acknowledged records?"""

    FORBIDDEN = False
    ALLOWED = True
