"""Slices of one step overlap on their way to ZooKeeper; they are applied and sent as if they did not."""

from __future__ import annotations

import asyncio

import pytest

from klamm.controller.execution import runner

from .scenario import Scenario

PARTITIONS = 7


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLICE_PARTITIONS", 2)


async def test_every_partition_is_elected_once_and_told_in_order() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2, 3]] * PARTITIONS))
        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert [scenario.state("t", n) for n in range(PARTITIONS)] == [(2, 1, [2, 3], 1)] * PARTITIONS
        told = [line for line in talk if line.startswith("2 <- LeaderAndIsr")]
        slices = [(0, 1), (2, 3), (4, 5), (6,)]
        entry = "t-{} leader 2 e1 isr [2, 3] v1"
        assert told == [f"2 <- LeaderAndIsr {{{'; '.join(entry.format(n) for n in some)}}}" for some in slices]


async def test_a_conflict_in_one_slice_is_decided_again_and_the_others_stand() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2, 3]] * PARTITIONS))

        def fail_with_a_shrinking_leader() -> None:
            scenario.zk.before_write = lambda: scenario.put_state("t", 1, 1, 0, [1, 3], 5)
            scenario.stop_broker(1)

        await scenario.after(fail_with_a_shrinking_leader)
        assert scenario.state("t", 1) == (3, 1, [3], 2)
        others = [scenario.state("t", n) for n in range(PARTITIONS) if n != 1]
        assert others == [(2, 1, [2, 3], 1)] * (PARTITIONS - 1)


async def test_when_the_fence_falls_nothing_in_flight_is_written_or_told() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2, 3]] * PARTITIONS))

        def fail_while_another_is_elected() -> None:
            scenario.zk.before_write = lambda: scenario.zk.put("/controller_epoch", "6")
            scenario.stop_broker(1)

        talk = await scenario.after(fail_while_another_is_elected)
        assert scenario.controller.is_active, "nobody else took /controller, so it is ours again, under the next epoch"
        states = [line for line in talk if "/state " in line]
        assert states and all('"controller_epoch":7' in line for line in states)
        assert not [task for task in asyncio.all_tasks() if "_commit_slice" in repr(task)]
