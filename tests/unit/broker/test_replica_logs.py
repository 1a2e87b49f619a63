"""A log that was found on the disk: opened if it may be the topic's, set aside if the topic began anew, not deleted."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.log.directories.topic_lives import TopicLife, may_belong
from klamm.model.config import TopicConfig
from klamm.model.control import Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.zookeeper.znodes import config, topic

from .conftest import FakeLog
from .one_broker import TP, OneBroker, one

__all__ = ["one"]

SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))


@pytest.mark.parametrize(
    ("known", "now", "is_new", "opened"),
    [
        (TopicLife(1, 5), TopicLife(1, 5), True, True),
        (TopicLife(1, 5), TopicLife(1, 5), False, True),
        (TopicLife(1, 5), TopicLife(1, 9), True, False),
        (TopicLife(1, 5), TopicLife(1, 9), False, False),
        (TopicLife(1, 5), TopicLife(8, 9), True, True),
        (None, TopicLife(1, 5), True, False),
        (None, TopicLife(1, 5), False, True),
        (TopicLife(1, 5), None, True, False),
        (TopicLife(1, 5), None, False, True),
    ],
)
def test_which_logs_may_belong_to_a_topic(
    known: TopicLife | None, now: TopicLife | None, is_new: bool, opened: bool
) -> None:
    assert may_belong(known, now, is_new=is_new) is opened


class Restarted:
    """A broker that was restarted: its log has two records, and no order has come yet."""

    def __init__(self, one: OneBroker, make_order: Any) -> None:
        self.one = one
        self.order = make_order
        one.zk.put(topic.path(TP.topic), b"{}")
        one.logs.kept[TP] = FakeLog(TP).fill(0, 1)
        one.logs.lives.known[TP] = self.life

    @property
    def life(self) -> TopicLife:
        nodes = self.one.zk.tree.nodes
        return TopicLife(nodes[topic.PARENT].czxid, nodes[topic.path(TP.topic)].czxid)

    def create_topic_again(self) -> None:
        self.one.zk.remove(topic.path(TP.topic))
        self.one.zk.put(topic.path(TP.topic), b"{}")

    async def told(self, *, is_new: bool) -> int:
        """Obeys an order to lead; returns the end of the log that it uses."""
        order = self.order(epoch=0, isr=(1,), replicas=(1, 2), is_new=is_new)
        answer = await self.one.replicas.leader_and_isr(SENDER, [order])
        assert answer.partitions == {TP: ErrorCode.NONE}
        assert self.one.logs.deleted == []
        return int(self.one.logs.kept[TP].log_end_offset)


@pytest.fixture
def restarted(one: OneBroker, make_order: Any) -> Restarted:
    return Restarted(one, make_order)


async def test_a_topic_that_lost_its_state_keeps_its_records(restarted: Restarted) -> None:
    """The controller takes it for a new one, but its znode is the same."""
    assert await restarted.told(is_new=True) == 2
    assert restarted.one.logs.aside == []


async def test_a_tree_that_was_built_anew_keeps_all_records(restarted: Restarted) -> None:
    restarted.one.zk.remove(topic.PARENT)
    restarted.one.zk.put(topic.path(TP.topic), b"{}")
    assert await restarted.told(is_new=True) == 2
    assert restarted.one.logs.lives.known[TP] == restarted.life, "the next comparison is with this tree"


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_topic_that_began_anew_shows_no_record_of_its_former_life(restarted: Restarted, is_new: bool) -> None:
    restarted.create_topic_again()
    assert await restarted.told(is_new=is_new) == 0
    assert restarted.one.logs.aside == [TP]
    assert restarted.one.logs.lives.known[TP] == restarted.life


async def test_a_log_of_unknown_life_is_opened_unless_the_replica_is_new(restarted: Restarted) -> None:
    """A JVM broker wrote it."""
    del restarted.one.logs.lives.known[TP]
    assert await restarted.told(is_new=False) == 2
    assert restarted.one.logs.lives.known[TP] == restarted.life


async def test_a_log_of_unknown_life_is_not_given_to_a_new_replica(restarted: Restarted) -> None:
    del restarted.one.logs.lives.known[TP]
    assert await restarted.told(is_new=True) == 0
    assert restarted.one.logs.aside == [TP]


async def test_an_empty_log_is_used_whatever_its_life(restarted: Restarted) -> None:
    restarted.one.logs.kept[TP] = FakeLog(TP)
    restarted.create_topic_again()
    await restarted.told(is_new=True)
    assert restarted.one.logs.aside == []


async def test_a_log_in_use_is_not_compared_again(restarted: Restarted) -> None:
    """Between two orders of one run the topic cannot begin anew without a StopReplica."""
    await restarted.told(is_new=False)
    restarted.create_topic_again()
    order = restarted.order(epoch=1, isr=(1,), replicas=(1, 2))
    await restarted.one.replicas.leader_and_isr(SENDER, [order])
    assert (restarted.one.logs.kept[TP].log_end_offset, restarted.one.logs.aside) == (2, [])


@pytest.mark.case("LOG-22")
@pytest.mark.parametrize("changed", ["topic", "broker"])
async def test_a_configuration_that_changes_while_a_log_is_created_reaches_it(
    one: OneBroker, make_order: Any, changed: str
) -> None:
    other = TopicPartition("other", 0)
    kept = one.logs.kept[other] = FakeLog(other)
    zk, create_many, reconfigure = one.zk, one.logs.create_many, one.logs.reconfigure
    reloaded: list[str] = []

    async def created_meanwhile(partitions: Any) -> Any:
        made = await create_many(partitions)
        one.logs.kept = {other: kept}  # the log is registered when it is complete
        if changed == "topic":
            zk.put(config.topic_path(TP.topic), config.encode({"min.insync.replicas": "2"}))
            await one.dynamic.apply("topics/orders")
        else:
            zk.put(config.path(config.BROKERS, "1"), config.encode({"min.insync.replicas": "2"}))
            await one.dynamic.apply("brokers/1")
        one.logs.kept |= made
        return made

    def remember(topic: str, effective: TopicConfig) -> None:
        reloaded.append(topic)
        reconfigure(topic, effective)

    one.logs.create_many, one.logs.reconfigure = created_meanwhile, remember
    answer = await one.replicas.leader_and_isr(SENDER, [make_order(epoch=0, isr=(1,), replicas=(1, 2))])
    assert answer.partitions == {TP: ErrorCode.NONE}
    assert one.logs.kept[TP].config.min_insync_replicas == 2
    assert ("other" in reloaded) is (changed == "broker")
