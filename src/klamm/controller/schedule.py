"""The periodic tasks of an active controller, as a table: started at the end of a fail-over, stopped at resignation.

An entry only enqueues its event. An entry that is off stays in the table and says why, for the operator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from klamm.controller.events import BalanceLeaders, ControllerEvent, RetryPending
from klamm.model.config import BrokerConfig

log = logging.getLogger(__name__)

RETRY_INTERVAL_S: Final = 30.0
"""Slow on purpose: what it retries waits for a broker or a disk to be repaired."""
FIRST_BALANCE_S: Final = 5.0


class Entry(NamedTuple):
    name: str
    first_s: float
    every_s: float
    event: Callable[[], ControllerEvent | None]
    """None means that there is nothing to do this time."""
    off: str = ""
    """Why it does not run."""


def entries_of(config: BrokerConfig, *, has_pending: Callable[[], bool]) -> tuple[Entry, ...]:
    """`has_pending`: does anything wait that a retry could help?"""
    check_s = float(config.leader_imbalance_check_interval_seconds)
    expiry_s = config.delegation_token_expiry_check_interval_ms / 1000
    no_balance = "" if config.auto_leader_rebalance_enable else "auto.leader.rebalance.enable=false"
    no_tokens = "delegation tokens are not served" if config.delegation_token_master_key else "no master key is set"
    return (
        Entry("retries", RETRY_INTERVAL_S, RETRY_INTERVAL_S, lambda: RetryPending() if has_pending() else None),
        Entry("leader-balance", FIRST_BALANCE_S, check_s, BalanceLeaders, no_balance),
        Entry("delegation-token-expiry", 0.0, expiry_s, lambda: None, no_tokens),
    )


class Schedule:
    def __init__(self, entries: Sequence[Entry], enqueue: Callable[[ControllerEvent], None]) -> None:
        self._entries = entries
        self._enqueue = enqueue
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for entry in self._entries:
            if entry.off:
                log.info("%s does not run: %s", entry.name, entry.off)
            else:
                self._tasks.append(asyncio.create_task(self._run(entry), name=f"controller-{entry.name}"))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def describe(self) -> tuple[tuple[str, str], ...]:
        return tuple((e.name, f"off: {e.off}" if e.off else f"every {e.every_s:g} s") for e in self._entries)

    async def _run(self, entry: Entry) -> None:
        pause = entry.first_s
        while True:
            await asyncio.sleep(pause)
            event = entry.event()
            if event is not None:
                self._enqueue(event)
            pause = entry.every_s
