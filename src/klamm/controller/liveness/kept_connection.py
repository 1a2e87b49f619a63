"""A connection to one broker that is kept up: made at once, made again when it breaks, and the evidence this gives.

The first attempt after a break comes at once, the next ones every 100 ms without end. They are the probes of fast
fail-over (see `suspicion`), and the way back for a broker that was only away. The event loop notices when an idle
connection breaks, without waiting for the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.controller.liveness.suspicion import BROKEN, PROBE_PAUSE_S, UNHARMED, Evidence
from klamm.model.ports import Clock
from klamm.net.client import BrokerConnection

log = logging.getLogger(__name__)


class KeptConnection:
    def __init__(
        self,
        connection: BrokerConnection,
        clock: Clock,
        connect_timeout: float,
        *,
        on_refused: Callable[[], None],
        evidence: Evidence = UNHARMED,
    ) -> None:
        self.connection = connection
        self.evidence = evidence
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._on_refused = on_refused
        self._is_up = asyncio.Event()

    async def run(self) -> None:
        try:
            while True:
                await self._connect()
                since = self._clock.monotonic()
                self.evidence = UNHARMED
                self._is_up.set()
                await self.connection.wait_lost()
                self.evidence = BROKEN
                if self._clock.monotonic() - since < PROBE_PAUSE_S:
                    await asyncio.sleep(PROBE_PAUSE_S)  # it was accepted and closed at once: do not spin
        finally:
            self.connection.abort()

    async def wait_connected(self) -> None:
        while not self.connection.is_connected:
            self._is_up.clear()
            await self._is_up.wait()

    async def _connect(self) -> None:
        logged = False
        reason: OSError
        while True:
            try:
                await self.connection.connect(self._connect_timeout)
                return
            except ConnectionRefusedError as error:
                self.evidence, reason = self.evidence.refused(self._clock.monotonic()), error
            except OSError as error:
                self.evidence, reason = self.evidence.unanswered(), error
            if not logged:
                logged = True
                log.info(
                    "cannot connect to %s:%d, trying again: %s", self.connection.host, self.connection.port, reason
                )
            if self.evidence.is_news:
                self._on_refused()
            await asyncio.sleep(PROBE_PAUSE_S)
