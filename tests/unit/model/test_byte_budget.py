"""A budget of bytes: the last one admitted may exceed it, and those that wait are called in their order."""

from __future__ import annotations

import asyncio

from klamm.model.byte_budget import ByteBudget


def test_a_request_larger_than_the_budget_is_admitted_while_anything_is_left() -> None:
    budget = ByteBudget(100)
    budget.take(99)
    assert budget.has_room
    budget.take(500)
    assert (budget.has_room, budget.left) == (False, -499)


def test_those_that_wait_are_called_in_their_order_while_there_is_room() -> None:
    budget, called = ByteBudget(100), []
    budget.take(100)

    def wait(name: str, size: int) -> None:
        budget.when_room(lambda: (called.append(name), budget.take(size)))  # type: ignore[func-returns-value, arg-type, return-value]

    wait("a", 30)
    wait("b", 30)
    wait("c", 1)
    budget.give_back(40)
    assert called == ["a", "b"], "c finds no room"
    budget.give_back(30)
    assert called == ["a", "b", "c"]


async def test_waiting_for_room() -> None:
    budget = ByteBudget(10)
    assert await budget.wait_room(0)
    budget.take(10)
    assert not await budget.wait_room(0)
    waiting = asyncio.create_task(budget.wait_room(60))
    await asyncio.sleep(0)
    budget.give_back(1)
    assert await waiting


def test_no_limit() -> None:
    budget = ByteBudget()
    budget.take(1 << 60)
    assert budget.has_room and budget.left is None
