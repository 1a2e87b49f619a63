"""Carries out what a group's state machine decided: answers, timers, writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeVar

from klamm.broker.coordinators.groups import join, rebalance
from klamm.broker.coordinators.groups.events import Answer, Call, Purpose, Timer, TimerKind, Turn, Write
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.group_log import Appended, GroupLog, group_error
from klamm.broker.coordinators.groups.rebalance import Rules
from klamm.broker.coordinators.groups.registry import GroupRegistry
from klamm.broker.coordinators.groups.timers import Timers
from klamm.model.errors import ErrorCode
from klamm.model.guard import Guard
from klamm.model.ports import Clock
from klamm.model.requests import ClientConnection
from klamm.wire.errors import CloseConnection

ANSWERS_PER_SLICE: Final = 200

A = TypeVar("A", bound=Answer)

log = logging.getLogger(__name__)


class Execution:
    def __init__(self, registry: GroupRegistry, group_log: GroupLog, clock: Clock, guard: Guard, rules: Rules) -> None:
        self._registry = registry
        self._guard = guard
        self._log = group_log
        self._clock = clock
        self.rules = rules
        self.timers: Timers[tuple[str, Timer]] = Timers()
        self.completed_rebalances = 0
        self.expired_members = 0

    def turn(self) -> Turn:
        return Turn(self._clock.wall_ms())

    def waiting(self, kinds: Collection[TimerKind]) -> int:
        return sum(timer.kind in kinds for _, timer in self.timers)

    # --- calls ---

    def call(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def answer(self, call: asyncio.Future[A], client: ClientConnection | None) -> A:
        """Wait for the answer. A client that disconnects only ends this wait: the group does not hear of it."""
        forget = client.when_gone(lambda: _close(call, "the client has disconnected")) if client is not None else None
        try:
            return await call
        finally:
            if forget is not None:
                forget()

    # --- turns ---

    def carry_out(self, group: Group, turn: Turn) -> None:
        for timer, delay_ms in turn.timers.items():
            if delay_ms is None:
                self.timers.cancel((group.id, timer))
            else:
                self.set_timer(group, timer, delay_ms)
        _settle_in_slices(iter(turn.answers))
        for call in turn.dropped:
            _close(call, "a later request of the same member replaces it")
        self._registry.weigh(group)
        if turn.write is not None:
            self._write(group, turn.write)

    def set_timer(self, group: Group, timer: Timer, delay_ms: int) -> None:
        self.timers.set((group.id, timer), delay_ms / 1000, lambda: self._time_over(group, timer))

    def _time_over(self, group: Group, timer: Timer) -> None:
        if not self._registry.holds(group):
            return
        turn = self.turn()
        match timer.kind:
            case TimerKind.SESSION:
                self.expired_members += rebalance.session_over(group, timer.member_id, self.rules, turn)
            case TimerKind.PENDING:
                rebalance.pending_over(group, timer.member_id, turn)
            case TimerKind.JOIN:
                rebalance.join_time_over(group, self.rules, turn)
            case TimerKind.SYNC:
                rebalance.sync_time_over(group, self.rules, turn)
        self.carry_out(group, turn)

    # --- writes ---

    def _write(self, group: Group, write: Write) -> None:
        self.completed_rebalances += write.purpose is Purpose.ASSIGNMENT
        appended = self._log.append_group(group.partition, group.id, write.value)
        if appended.error is not ErrorCode.NONE:
            self._written(group, write, appended.error)
        else:
            self._guard.start("group-write", group.id, lambda: self._wait(group, write, appended))

    async def _wait(self, group: Group, write: Write, appended: Appended) -> None:
        self._written(group, write, await self._log.acknowledged(appended))

    def _written(self, group: Group, write: Write, error: ErrorCode) -> None:
        if not self._registry.holds(group):
            return
        turn, outcome = self.turn(), group_error(error)
        if write.purpose is Purpose.ASSIGNMENT:
            rebalance.assignment_written(group, write, outcome, self.rules, turn)
        elif write.purpose is Purpose.REPLACEMENT:
            join.replacement_written(group, write, outcome, turn)
        elif error is not ErrorCode.NONE:
            log.warning("group %r is empty, but that could not be stored: %s", group.id, error.name)
        self.carry_out(group, turn)


def _settle_in_slices(answers: Iterator[tuple[Call, Answer]]) -> None:
    """Each answer wakes a task that encodes it, and all that are woken together run in one turn of the loop. The group
    has decided the answers, so it does not matter when they arrive."""
    for call, answer in islice(answers, ANSWERS_PER_SLICE):
        if not call.done():
            call.set_result(answer)
    if (following := next(answers, None)) is not None:
        asyncio.get_running_loop().call_soon(_settle_in_slices, chain([following], answers))


def _close(call: Call, reason: str) -> None:
    if not call.done():
        call.set_exception(CloseConnection(reason))
