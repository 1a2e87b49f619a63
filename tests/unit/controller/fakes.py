"""A clock and an event sink for controllers under test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from klamm.model.events import Decision, EventRecord, StateChange


class ManualClock:
    """Monotonic time is the loop's; wall time stands still."""

    def wall_ms(self) -> int:
        return 1_600_000_000_000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Sink:
    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def emit(self, records: Iterable[EventRecord]) -> None:
        self.records.extend(records)

    def decisions(self, event: str) -> list[Decision]:
        return [r for r in self.records if isinstance(r, Decision) and r.event == event]

    def state_changes(self) -> list[StateChange]:
        return [r for r in self.records if isinstance(r, StateChange)]
