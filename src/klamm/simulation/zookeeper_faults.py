"""Faults of the simulated ZooKeeper: random ones, and the lost answer of the next write of one session.

It also remembers when each session was last heard: a controller that ZooKeeper has not heard for two thirds of the
session timeout may no longer be the controller, and must send nothing.
"""

from __future__ import annotations

import random
from typing import Any

from klamm.model.ports import Clock
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.faults import Fault, RequestInfo, SeededFaults
from klamm.zookeeper.server.sessions import ServerSession, SessionTable


class ZooKeeperFaults(SeededFaults):
    def __init__(self, clock: Clock, rng: random.Random, *, lose: float, delay_max: float) -> None:
        super().__init__(rng, lose_request=lose, lose_reply=lose, delay_min=0.0001, delay_max=delay_max)
        self._clock = clock
        self._heard: dict[int, float] = {}
        self.lose_next_write: set[int] = set()
        """Sessions whose next multi is applied, but not answered."""

    def listen_to(self, sessions: SessionTable[Any]) -> None:
        """Remember whenever the server hears a session: by a request that was not lost, or by its resumption."""
        touch = sessions.touch

        def heard(session: ServerSession[Any], now_ms: int) -> None:
            self._heard[session.id] = self._clock.monotonic()
            touch(session, now_ms)

        sessions.touch = heard  # type: ignore[method-assign]

    def on_request(self, request: RequestInfo) -> Fault:
        if request.opcode == OpCode.MULTI and request.session_id in self.lose_next_write:
            self.lose_next_write.discard(request.session_id)
            return Fault.LOSE_REPLY
        return super().on_request(request)

    def seconds_unheard(self, session_id: int) -> float:
        """At least as long as the client's own silence may be."""
        heard = self._heard.get(session_id)
        return 0.0 if heard is None else self._clock.monotonic() - heard

    def end(self) -> None:
        self.lose_request = self.lose_reply = 0.0
        self.lose_next_write.clear()
        self.delay_max = 0.02
