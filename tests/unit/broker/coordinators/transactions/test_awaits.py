"""Transactional ids that change, or whose partition moves, between a decision and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from klamm.broker.coordinators.transactions.markers import TransactionEnd
from klamm.broker.coordinators.transactions.owned_partition import Entry, OwnedPartition
from klamm.broker.coordinators.transactions.transaction import Transaction, TransactionState
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition

from .coordinating import Coordinating, state_partition

A = TopicPartition("orders", 0)
EMPTY = Transaction(
    "tx", ProducerId(7), 10, 60_000, TransactionState.EMPTY, last_update_ms=1, last_producer_id=ProducerId(7)
)
TIMED_OUT = replace(EMPTY, state=TransactionState.ONGOING, partitions=frozenset({A}), start_ms=1)
RARELY = BrokerConfig(
    broker_id=1,
    transaction_abort_timed_out_interval_ms=1_000_000,
    transaction_remove_expired_interval_ms=1_000_000,
    producer_id_expiration_ms=1_000,
)
"""The test calls the timers itself."""


@pytest.fixture
async def world() -> AsyncIterator[Coordinating]:
    async with Coordinating(RARELY).running() as running:
        await running.told({A: 1})
        yield running


def of_tx(world: Coordinating) -> tuple[OwnedPartition, Entry]:
    (owned,) = world.coordinator.owned()
    return owned, owned.entries["tx"]


@pytest.mark.parametrize("timer", ["_abort", "_remove"])
@pytest.mark.parametrize("meanwhile", ["nothing", "a write", "another state", "the coordinator moves"])
async def test_what_a_timer_found_is_looked_at_again(world: Coordinating, timer: str, meanwhile: str) -> None:
    """It looks at many ids, and begins with one after the other."""
    world.put(TIMED_OUT if timer == "_abort" else EMPTY)
    await world.lead()
    owned, entry = of_tx(world)
    due = [owned, entry] if timer == "_abort" else [owned, entry, world.clock.wall_ms()]
    if meanwhile == "another state":
        entry.current = replace(TIMED_OUT, start_ms=world.clock.wall_ms())
    elif meanwhile == "the coordinator moves":
        world.resign()
    if meanwhile == "a write":
        with entry.writing():
            await getattr(world.timers, timer)(*due)
    else:
        await getattr(world.timers, timer)(*due)
    assert bool(world.log.written) == (meanwhile == "nothing")


async def test_an_id_is_kept_if_its_partition_moved_while_it_was_removed(world: Coordinating) -> None:
    """The partition is loaded again meanwhile: what was found there is what counts."""
    world.put(EMPTY)
    await world.lead()
    owned, entry = of_tx(world)
    write = world.log.write_tombstone

    async def and_move(partition: int, transactional_id: str) -> ErrorCode:
        error = await write(partition, transactional_id)
        world.resign()
        return error

    world.log.write_tombstone = and_move  # type: ignore[method-assign]
    await world.timers._remove(owned, entry, world.clock.wall_ms())
    assert "tx" in owned.entries


async def test_a_later_end_of_the_same_id_replaces_the_former(world: Coordinating) -> None:
    """The partition was loaded again: only the present end is told that its markers are written."""
    written: list[int] = []
    ends = [
        TransactionEnd("tx", 0, LeaderEpoch(epoch), ProducerId(7), 10, commit=True, missing={A}) for epoch in (5, 6)
    ]
    await world.told({A: 3})  # no such broker
    for end in ends:
        world.markers.send(end, lambda end: written.append(end.coordinator_epoch))
    await world.told({A: 1})
    await world.settled(lambda: 6 in written)
    assert (written, ends[0].is_over) == ([6], True)


@pytest.mark.parametrize("comes_back", [False, True])
async def test_markers_of_a_former_coordination_complete_nothing(world: Coordinating, comes_back: bool) -> None:
    """The next coordinator sends its own: it may have decided the next transaction already."""
    await world.told({A: 3})  # no such broker, so the markers wait
    world.put(replace(TIMED_OUT, state=TransactionState.PREPARE_COMMIT))
    await world.lead(epoch=5)
    end, _ = world.markers._open[state_partition("tx").partition]["tx"]
    world.resign(epoch=6)
    if comes_back:
        await world.lead(epoch=7)
    world.coordinator._markers_written(end)
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.log.written == []


async def test_a_transaction_that_is_complete_is_not_completed_again(world: Coordinating) -> None:
    await world.told({A: 3})  # no such broker, so the markers wait
    world.put(replace(TIMED_OUT, state=TransactionState.PREPARE_COMMIT))
    await world.lead()
    end, _ = world.markers._open[state_partition("tx").partition]["tx"]
    _, entry = of_tx(world)
    entry.current = TIMED_OUT  # complete, and its producer has begun the next transaction
    world.coordinator._markers_written(end)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (world.log.written, entry.current) == ([], TIMED_OUT)
