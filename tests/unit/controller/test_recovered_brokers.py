"""Brokers that lost the ends of their logs while no controller looked (ADR 0014)."""

from __future__ import annotations

import pytest

from klamm.model.brokers import Broker, Endpoint
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.zookeeper.znodes import broker_id

from .scenario import PORT, Scenario


def register(scenario: Scenario, broker: int, *, recovered: bool | BrokerEpoch) -> None:
    value = Broker(BrokerId(broker), (Endpoint("PLAINTEXT", "h", PORT + broker),), recovered=recovered)
    scenario.zk.put(f"/brokers/ids/{broker}", broker_id.encode(value, 0), owner=1000 + broker)


def epochs_in(orders: list[str]) -> list[int]:
    """The leader epochs that brokers were told."""
    return [int(line.split("t-0 leader ")[1].split()[1].removeprefix("e")) for line in orders]


async def fail_over(
    *, leader: int, isr: list[int], recovered: set[int], alive: tuple[int, ...] = (1, 2, 3), before: bool = True
) -> tuple[int, int, list[int]]:
    """The leader, epoch and ISR after a fail-over. The state was at epoch 7 and written before the brokers
    registered, or after that."""
    scenario = Scenario()
    scenario.prepare()
    scenario.create_topic("t", [1, 2, 3])
    if before:
        scenario.put_state("t", 0, leader, 7, isr, 4)
    for broker in alive:
        register(scenario, broker, recovered=broker in recovered)
    if not before:
        scenario.put_state("t", 0, leader, 7, isr, 4)
    async with scenario.controller.running():
        await scenario.settle()
        orders = [line for line in scenario.talk() if "LeaderAndIsr" in line and "t-0" in line]
        leader, epoch, isr, _ = scenario.state("t", 0)
        assert min(epochs_in(orders)) == min(epoch, 8), "no broker is told a state that does not stand"
        return leader, epoch, isr


@pytest.mark.parametrize(
    ("leader", "isr", "recovered", "expected"),
    [
        (1, [1, 2, 3], {1}, (2, 8, [2, 3])),
        (1, [1, 2, 3], {2}, (1, 8, [1, 3])),
        (1, [1, 2], {1, 2}, (1, 8, [1, 2])),
        (1, [1], {1}, (1, 8, [1])),
        (1, [1, 3], {2}, (1, 7, [1, 3])),
        (1, [1, 2, 3], set(), (1, 7, [1, 2, 3])),
    ],
    ids=["leader", "follower", "all", "alone", "not in sync", "none"],
)
async def test_a_broker_that_recovered_unnoticed_is_not_trusted(
    leader: int, isr: list[int], recovered: set[int], expected: tuple[int, int, list[int]]
) -> None:
    assert await fail_over(leader=leader, isr=isr, recovered=recovered) == expected


async def test_a_state_that_was_written_after_the_start_stands() -> None:
    assert await fail_over(leader=1, isr=[1, 2, 3], recovered={1}, before=False) == (1, 7, [1, 2, 3])


@pytest.mark.parametrize(("before", "expected"), [(True, (2, 8, [2, 3])), (False, (1, 7, [1, 2, 3]))])
async def test_a_renewed_registration_counts_from_the_first_one(
    before: bool, expected: tuple[int, int, list[int]]
) -> None:
    """No controller may have seen the first one. What was written after it stands."""
    scenario = Scenario()
    scenario.prepare()
    scenario.create_topic("t", [1, 2, 3])
    if before:
        scenario.put_state("t", 0, 1, 7, [1, 2, 3], 4)
    register(scenario, 1, recovered=True)
    first = BrokerEpoch((await scenario.zk.get("/brokers/ids/1")).stat.czxid)
    if not before:
        scenario.put_state("t", 0, 1, 7, [1, 2, 3], 4)
    scenario.zk.remove("/brokers/ids/1")
    register(scenario, 1, recovered=first)
    for broker in (2, 3):
        register(scenario, broker, recovered=False)
    async with scenario.controller.running():
        await scenario.settle()
        leader, epoch, isr, _ = scenario.state("t", 0)
        assert (leader, epoch, isr) == expected


async def test_only_a_live_member_of_the_isr_takes_over() -> None:
    leader, epoch, isr = await fail_over(leader=1, isr=[1, 2], recovered={1}, alive=(1, 3))
    assert (leader, isr) == (1, [1])
    assert epoch > 7


async def test_a_topic_that_grows_readable_after_its_leader_died_gives_it_a_new_epoch() -> None:
    """The controller did not know the topic when the broker died, so it could not take it out of the ISR."""
    scenario = Scenario()
    scenario.prepare(2)
    scenario.zk.put("/brokers/topics/t", "{")
    scenario.put_state("t", 0, 1, 7, [1], 4)
    async with scenario.controller.running():
        await scenario.settle()
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        assert scenario.state("t", 0) == (1, 7, [1], 0)
        orders = [
            line
            for line in await scenario.after(lambda: register(scenario, 1, recovered=True))
            if "LeaderAndIsr" in line and "t-0" in line
        ]
        assert scenario.state("t", 0)[:3] == (1, 8, [1])
        assert min(epochs_in(orders)) == 8, "no broker leads in the epoch in which it may have lost records"


async def test_a_topic_that_grows_readable_is_not_led_by_a_broker_that_recovered_meanwhile() -> None:
    scenario = Scenario()
    scenario.prepare(2)
    scenario.zk.put("/brokers/topics/t", "{")
    scenario.put_state("t", 0, 1, 7, [1, 2], 4)
    async with scenario.controller.running():
        await scenario.settle()
        await scenario.after(lambda: register(scenario, 1, recovered=True))
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        leader, _, isr, _ = scenario.state("t", 0)
        assert (leader, isr) == (2, [2])


def test_the_registration_says_so() -> None:
    value = Broker(BrokerId(1), (Endpoint("PLAINTEXT", "h", 9092),), recovered=True)
    assert broker_id.decode("/brokers/ids/1", broker_id.encode(value, 0)) == value
