"""Faults that a test or a simulation asks the server for: late answers, and connections cut around a request.

Off unless asked for. All choices come from the `random.Random` handed in, so one seed gives one run. A cut with the
request *lost* leaves no trace of it; a cut with the reply lost leaves the client not knowing that it was applied.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol


class Fault(Enum):
    NONE = auto()
    LOSE_REQUEST = auto()
    LOSE_REPLY = auto()


class RequestInfo(NamedTuple):
    session_id: int
    opcode: int


class Faults(Protocol):
    def on_request(self, request: RequestInfo) -> Fault:
        """Asked before a request is looked at. Anything but NONE cuts its connection."""

    def reply_delay(self) -> float:
        """Seconds by which the next frame to a client is held back; their order stays."""


@dataclass(slots=True)
class SeededFaults:
    """Each request fails with these probabilities; each frame waits between the two delays, in seconds."""

    random: random.Random
    lose_request: float = 0.0
    lose_reply: float = 0.0
    delay_min: float = 0.0
    delay_max: float = 0.0

    def on_request(self, request: RequestInfo) -> Fault:
        drawn = self.random.random()
        if drawn < self.lose_request:
            return Fault.LOSE_REQUEST
        if drawn < self.lose_request + self.lose_reply:
            return Fault.LOSE_REPLY
        return Fault.NONE

    def reply_delay(self) -> float:
        return self.random.uniform(self.delay_min, self.delay_max) if self.delay_max else 0.0
