"""One finding: what is wrong, where, how that shows, and what to do about it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    CRITICAL = 0
    """The cluster, or part of it, does not work."""
    ERROR = 1
    """Something is broken or will be after the next failure."""
    WARNING = 2
    """Works, but is not as it should be."""
    INFO = 3


class Finding(NamedTuple):
    severity: Severity
    code: str
    """A stable name for scripts, like `state-lost`."""
    path: str
    evidence: str
    cure: str
    """A command where there is one."""
