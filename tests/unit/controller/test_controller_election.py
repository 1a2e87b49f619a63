"""/controller and /controller_epoch change in one transaction, and the epoch never goes back."""

from __future__ import annotations

import pytest

from klamm.controller.election.controller_election import EPOCH_GAP, ControllerElection, Won
from klamm.controller.events import TakeOver
from klamm.model.errors import NoAuth
from klamm.model.ids import BrokerId
from klamm.model.ports import Fence, Op, OpResult, WatchEvent
from klamm.testing.zookeeper import InMemoryZooKeeper

from .fakes import ManualClock
from .scenario import Scenario

OTHER = '{"version":1,"brokerid":1,"timestamp":"0"}'


def ignore(event: WatchEvent) -> None: ...


def election_on(zk: InMemoryZooKeeper) -> ControllerElection:
    return ControllerElection(zk, ManualClock(), BrokerId(9), ignore)


def czxid(zk: InMemoryZooKeeper) -> int:
    return zk.tree.nodes["/controller"].czxid


async def test_a_take_over_replaces_the_node_that_was_meant() -> None:
    scenario = Scenario()
    scenario.prepare(1)
    scenario.zk.put("/controller", OTHER, owner=77)
    async with scenario.controller.running():
        await scenario.settle()
        meant = czxid(scenario.zk)
        # Another broker has been elected: nothing happens.
        scenario.zk.remove("/controller")
        scenario.zk.put("/controller", OTHER, owner=78)
        scenario.controller._queue.put_nowait(TakeOver(meant, "its listener refuses"))
        await scenario.settle()
        assert not scenario.controller.is_active
        assert scenario.talk() == []

        scenario.controller._queue.put_nowait(TakeOver(czxid(scenario.zk), "its listener refuses"))
        await scenario.settle()
        assert scenario.controller.is_active
        assert scenario.zk.tree.nodes["/controller"].owner == scenario.zk.session_id
        assert scenario.zk.text("/controller_epoch") == "5"
        assert scenario.talk()[:3] == [
            "delete /controller",
            'create /controller {"version":1,"brokerid":9,"timestamp":"1600000000000"}',
            "set /controller_epoch 5",
        ]
        (moved,) = scenario.sink.decisions("controller-moved")
        assert (moved.cause, moved.detail) == ("its listener refuses", "from broker 1 to broker 9")


async def test_an_active_controller_takes_nothing_over() -> None:
    async with Scenario().running(1) as scenario:
        scenario.controller._queue.put_nowait(TakeOver(czxid(scenario.zk), "a late suspicion"))
        await scenario.settle()
        assert scenario.talk() == []
        assert scenario.controller.controller_epoch == 5


@pytest.mark.parametrize("fate", ["applied", "dropped"])
async def test_a_take_over_whose_answer_is_lost(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.controller.election.controller_election.RECONNECT_PAUSE_S", 0)
    zk = InMemoryZooKeeper()
    zk.put("/controller_epoch", "4")
    zk.put("/controller", OTHER, owner=77)
    zk.lose_answers = [fate]
    assert await election_on(zk).take_over(czxid(zk)) == Won(5, 1)
    assert zk.text("/controller_epoch") == "5"
    assert zk.tree.nodes["/controller"].owner == zk.session_id


async def test_nobody_touches_a_persistent_node() -> None:
    zk = InMemoryZooKeeper()
    zk.put("/controller_epoch", "4")
    zk.put("/controller", OTHER)
    election = election_on(zk)
    assert await election.stand() is None
    assert await election.take_over(czxid(zk)) is None
    assert zk.tree.writes == []


async def test_a_refusal_that_would_come_again_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    zk = InMemoryZooKeeper()
    zk.put("/controller_epoch", "4")

    async def refuse(ops: list[Op]) -> list[OpResult]:
        return [NoAuth(op.path) for op in ops]

    monkeypatch.setattr(zk, "multi", refuse)
    with pytest.raises(NoAuth):
        await election_on(zk).stand()


async def test_giving_back_is_fenced() -> None:
    zk = InMemoryZooKeeper()
    election = election_on(zk)
    won = await election.stand()
    assert won is not None
    zk.put("/controller_epoch", "7")
    await election.resign(Fence("/controller_epoch", won.zk_version))
    assert "/controller" in zk.tree.nodes
    await election.resign(Fence("/controller_epoch", won.zk_version + 1))
    assert "/controller" not in zk.tree.nodes


def with_state(zk: InMemoryZooKeeper, controller_epoch: int) -> None:
    state = f'{{"controller_epoch":{controller_epoch},"leader":1,"version":1,"leader_epoch":0,"isr":[1]}}'
    zk.put("/brokers/topics/t", '{"version":1,"partitions":{"0":[1]}}')
    zk.put("/brokers/topics/t/partitions/0/state", state)


@pytest.mark.parametrize("junk", ["", "x", "-3", "1.5", "99999999999", "2147483647"])
async def test_junk_in_the_epoch_is_healed_upwards(junk: str) -> None:
    zk = InMemoryZooKeeper()
    with_state(zk, 40)
    zk.put("/brokers/topics/junk", "{")
    zk.put("/controller_epoch", "41")
    zk.put("/controller_epoch", junk)
    won = await election_on(zk).stand()
    assert won is not None and won.healed is not None
    assert won.epoch == 40 + EPOCH_GAP + 1
    assert zk.text("/controller_epoch") == str(won.epoch)
    assert won.zk_version == zk.tree.nodes["/controller_epoch"].version


async def test_an_epoch_that_was_healed_is_healed_again_by_somebody_new() -> None:
    """No state was written under the healed epoch, and the next controller has never seen it."""
    zk = InMemoryZooKeeper()
    with_state(zk, 40)
    healed = []
    for _ in range(3):
        zk.put("/controller_epoch", "junk")
        won = await election_on(zk).stand()
        assert won is not None
        healed.append(won.epoch)
    assert healed == sorted(set(healed))


async def test_a_deleted_epoch_goes_on_above_every_state() -> None:
    zk = InMemoryZooKeeper()
    with_state(zk, 40)
    won = await election_on(zk).stand()
    assert won is not None and won.healed is not None
    assert won.epoch == 40 + EPOCH_GAP + 1


async def test_no_fence_comes_again_after_the_epoch_was_deleted() -> None:
    """An earlier controller holds a version of the deleted node as its fence: the new node must never reach it."""
    zk = InMemoryZooKeeper()
    election = election_on(zk)
    before = await election.stand()
    assert before is not None
    with_state(zk, before.epoch)
    zk.remove("/controller_epoch")
    fences = []
    for _ in range(5):
        won = await election.stand()
        assert won is not None
        fences.append(won.zk_version)
    assert min(fences) > before.zk_version
    assert fences == sorted(set(fences))


async def test_what_was_seen_before_counts() -> None:
    zk = InMemoryZooKeeper()
    zk.put("/controller_epoch", "500")
    election = election_on(zk)
    await election.read()
    zk.put("/controller_epoch", "3")
    won = await election.stand()
    assert won is not None and won.epoch == 501


async def test_a_number_below_its_version_was_written_by_hand() -> None:
    zk = InMemoryZooKeeper()
    zk.put("/controller_epoch", "0")
    for epoch in ("1", "2", "3", "0"):
        zk.put("/controller_epoch", epoch)
    won = await election_on(zk).stand()
    assert won is not None and won.epoch == 5  # the version is 4, so at most epoch 4 was in use


async def test_a_new_cluster_begins_at_one() -> None:
    zk = InMemoryZooKeeper()
    assert await election_on(zk).stand() == Won(1, 1)
