"""Faults that tests and simulations inject into the server: late answers, and connections cut at a request.

They are off by default. All choices come from the given `random.Random`, so one seed gives one run. If the request is
lost, the server never sees it. If the reply is lost, the request was applied and the client does not know.
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
        """Called before a request is handled. Anything but NONE cuts its connection."""

    def reply_delay(self) -> float:
        """The delay of the next frame to a client, in seconds. Frames keep their order."""


@dataclass(slots=True)
class SeededFaults:
    """Requests fail with these probabilities. Each frame is delayed by a time between the two delays, in seconds."""

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
