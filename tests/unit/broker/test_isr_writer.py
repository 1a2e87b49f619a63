"""The ISR write: an ISR counts only when the outcome of its write is known, whatever the connection does."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker import isr_writer
from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.isr_writer import IsrWriter
from klamm.broker.partition import Partition
from klamm.model.errors import NoAuth
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.zookeeper.znodes import isr_change, partition_state

ALONE = (BrokerId(1),)
BOTH = (BrokerId(1), BrokerId(2))


class Leading:
    def __init__(self, partition: Partition, log: Any, zk: Any, clock: Any, make_order: Any) -> None:
        self.partition = partition
        self.zk = zk
        self.order = make_order
        self.log = log
        self.settled: list[tuple[BrokerId, ...]] = []
        self.notifications = IsrNotifications(zk, clock)
        self.writer = IsrWriter(zk, self.notifications, lambda p, before: self.settled.append(p.isr))
        self.path = partition_state.path(partition.topic_partition)
        self.store(BOTH, version=4)
        partition.make_leader(make_order(epoch=3, isr=BOTH, replicas=BOTH, zk_version=4), log)

    def store(self, isr: tuple[BrokerId, ...], version: int, leader_epoch: int = 3) -> None:
        state = LeaderAndIsr(BrokerId(1), LeaderEpoch(leader_epoch), isr, ControllerEpoch(5))
        self.zk.put(self.path, partition_state.encode(state))
        self.zk.tree.nodes[self.path].version = version

    @property
    def stored(self) -> LeaderAndIsr:
        return partition_state.decode(self.path, self.zk.data(self.path))

    async def write(self, isr: tuple[BrokerId, ...]) -> None:
        self.partition.pending_isr = isr
        await self.writer.write(self.partition, isr)


@pytest.fixture
def leading(
    partition: Partition, make_log: Any, zk: Any, clock: Any, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> Leading:
    monkeypatch.setattr(isr_writer, "RECONNECT_PAUSE_S", 0)
    return Leading(partition, make_log(), zk, clock, make_order)


@pytest.mark.case("ISR-04", "ISR-05")
async def test_written_with_the_same_leader_epoch_and_the_controller_epoch_of_the_leadership(leading: Leading) -> None:
    await leading.write(ALONE)
    assert leading.stored == LeaderAndIsr(BrokerId(1), LeaderEpoch(3), ALONE, ControllerEpoch(5))
    assert (leading.partition.isr, leading.partition.zk_version, leading.partition.pending_isr) == (ALONE, 5, None)
    assert leading.settled == [ALONE]


async def test_lost_answer_of_an_applied_write_is_recognised(leading: Leading) -> None:
    leading.zk.lose_answers = ["applied"]
    await leading.write(ALONE)
    assert (leading.partition.isr, leading.partition.zk_version) == (ALONE, 5)


async def test_lost_write_is_sent_again(leading: Leading) -> None:
    leading.zk.lose_answers = ["dropped", "dropped"]
    await leading.write(ALONE)
    assert leading.stored.isr == ALONE
    assert leading.partition.zk_version == 5


async def test_controller_was_faster(leading: Leading) -> None:
    leading.store(ALONE, version=5, leader_epoch=4)
    await leading.write(ALONE)
    assert leading.partition.isr == BOTH
    assert leading.partition.pending_isr == ALONE, "still counts for the high watermark"
    assert leading.partition.proposed_shrink() is None
    assert leading.writer.failed_updates == 1
    leading.partition.make_leader(leading.order(epoch=4, isr=ALONE, replicas=BOTH, zk_version=5), leading.log)
    assert leading.partition.pending_isr is None
    assert not leading.partition.superseded


async def test_same_epoch_other_version_is_adopted(leading: Leading) -> None:
    leading.store(BOTH, version=9)
    await leading.write(ALONE)
    assert (leading.partition.isr, leading.partition.zk_version) == (BOTH, 9)
    assert leading.partition.pending_isr is None


async def test_new_role_ends_the_attempt(leading: Leading) -> None:
    leading.partition.pending_isr = ALONE
    leading.partition.make_follower(leading.order(leader=2, epoch=4), leading.log)
    await leading.writer.write(leading.partition, ALONE)
    assert leading.stored.isr == BOTH
    assert leading.partition.isr == ()


async def test_a_role_that_came_during_the_write_is_newer(leading: Leading) -> None:
    """The write succeeds, and its answer comes after the LeaderAndIsr of the next epoch."""
    order = leading.order(epoch=4, isr=BOTH, replicas=BOTH, zk_version=9)
    leading.zk.before_write = lambda: leading.partition.make_leader(order, leading.log)
    await leading.write(ALONE)
    assert (leading.partition.isr, leading.partition.zk_version, leading.settled) == (BOTH, 9, [])


async def test_topic_gone(leading: Leading) -> None:
    leading.zk.remove(leading.path)
    await leading.write(ALONE)
    assert leading.partition.superseded


async def test_the_topic_is_gone_after_the_next_order(leading: Leading) -> None:
    """The outcome of a former leadership says nothing about the present one."""

    def replace() -> None:
        leading.zk.remove(leading.path)
        leading.partition.make_leader(leading.order(epoch=4, isr=BOTH, replicas=BOTH), leading.log)

    leading.zk.before_write = replace
    await leading.write(ALONE)
    assert not leading.partition.superseded


async def test_a_role_that_came_while_the_znode_was_read_is_newer(
    leading: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading.store(ALONE, version=9)
    get = leading.zk.get

    async def and_lead_again(path: str) -> Any:
        node = await get(path)
        leading.partition.make_leader(leading.order(epoch=4, isr=BOTH, replicas=BOTH, zk_version=12), leading.log)
        return node

    monkeypatch.setattr(leading.zk, "get", and_lead_again)
    await leading.write(ALONE)
    assert (leading.partition.isr, leading.partition.zk_version, leading.settled) == (BOTH, 12, [])
    assert not leading.partition.superseded


async def test_a_znode_that_cannot_be_understood_waits_for_the_controller(leading: Leading) -> None:
    leading.zk.put(leading.path, b"{")
    leading.zk.tree.nodes[leading.path].version = 9
    await leading.write(ALONE)
    assert leading.partition.superseded
    assert (leading.partition.isr, leading.partition.pending_isr) == (BOTH, ALONE)


async def test_a_refused_read_is_tried_again_after_a_pause(leading: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
    leading.store(ALONE, version=9)
    get, pauses = leading.zk.get, []

    async def refuse_once(path: str) -> Any:
        if not pauses:
            raise NoAuth(path)
        return await get(path)

    def pause_after(refusals: int) -> float:
        pauses.append(refusals)
        return 0.0

    monkeypatch.setattr(leading.zk, "get", refuse_once)
    monkeypatch.setattr(isr_writer, "pause_after", pause_after)
    await leading.write(BOTH)
    assert pauses == [1]
    assert (leading.partition.isr, leading.partition.zk_version) == (ALONE, 9)


@pytest.mark.case("ISR-08")
async def test_notifications_are_bundled(leading: Leading, clock: Any) -> None:
    notifications = leading.notifications
    assert not notifications.is_due()
    await leading.write(ALONE)
    clock.advance(4)
    assert not notifications.is_due(), "a change within the last five seconds"
    await leading.write(BOTH)
    clock.advance(5.1)
    assert notifications.is_due()
    leading.zk.lose_answers = ["dropped"]
    await notifications.send()
    assert notifications.is_due(), "a lost connection does not lose it"
    await notifications.send()
    assert not notifications.is_due()
    names = [path for path in leading.zk.tree.nodes if path.startswith(isr_change.PREFIX)]
    assert len(names) == 1
    assert isr_change.decode(names[0], leading.zk.data(names[0])) == (leading.partition.topic_partition,)


async def test_steady_changes_are_announced_once_a_minute(leading: Leading, clock: Any) -> None:
    for _ in range(30):
        clock.advance(2)
        leading.notifications.record(leading.partition.topic_partition)
    assert not leading.notifications.is_due()
    clock.advance(0.1)
    leading.notifications.record(leading.partition.topic_partition)
    assert leading.notifications.is_due()
