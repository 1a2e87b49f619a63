"""Timers of groups: deadlines that move, and many that end together."""

from __future__ import annotations

import asyncio

from klamm.broker.coordinators.groups.timers import ENDED_PER_TURN, Timers

SHORT, LONG = 0.001, 3_600.0


async def test_timers_that_end_together_take_several_turns() -> None:
    timers: Timers[int] = Timers()
    count, turn = 3 * ENDED_PER_TURN, 0
    turns: dict[int, int] = {}
    for key in range(count):
        timers.set(key, 0, lambda key=key: turns.setdefault(key, turn))  # type: ignore[misc]
    while len(turns) < count:
        await asyncio.sleep(0)
        turn += 1
    assert list(turns) == list(range(count)), "in the order in which they ended"
    ended = list(turns.values())
    assert max(ended.count(turn) for turn in ended) <= ENDED_PER_TURN
    assert len(timers) == 0


async def test_what_happens_before_the_turn_of_a_timer_counts() -> None:
    timers: Timers[str] = Timers()
    ended: list[str] = []

    def first() -> None:
        ended.append("first")
        timers.set("renewed", LONG, lambda: ended.append("renewed"))
        timers.cancel("cancelled")

    timers.set("first", 0, first)
    for name in ("renewed", "cancelled", "failing", "last"):
        timers.set(name, 0, lambda name=name: ended.append(name) if name != "failing" else 1 / 0)  # type: ignore[misc]
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    while "last" not in ended:
        await asyncio.sleep(0)
    assert (ended, failures, list(timers)) == (["first", "last"], ["division by zero"], ["renewed"])
    timers.cancel_all()
    assert not list(timers)


async def test_a_deadline_moves_both_ways() -> None:
    timers: Timers[str] = Timers()
    ended: list[str] = []
    timers.set("earlier", LONG, lambda: ended.append("never"))
    timers.set("earlier", SHORT, lambda: ended.append("earlier"))
    timers.set("later", SHORT, lambda: ended.append("never"))
    timers.set("later", 20 * SHORT, lambda: ended.append("later"))
    while len(ended) < 2:
        await asyncio.sleep(SHORT)
    assert ended == ["earlier", "later"]
