"""Leader elections on request: by a call, a znode or a timer."""

from __future__ import annotations

import json

import pytest

from klamm.controller.events import BalanceLeaders
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError, NodeExists
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.zookeeper.znodes import preferred_replica_election

from .scenario import Scenario
from .test_traces import requests, writes

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ZNODE = "/admin/preferred_replica_election"


async def led_by_the_second(scenario: Scenario) -> None:
    """t-0 and t-1 on [1, 2], both in sync, led by 2."""
    await scenario.after(lambda: scenario.create_topic("t", [1, 2], [1, 2]))
    await scenario.after(lambda: scenario.stop_broker(1))
    await scenario.after(lambda: scenario.start_broker(1))
    for partition in (0, 1):
        leader, epoch, isr, _ = scenario.state("t", partition)
        assert (leader, isr) == (2, [2])
        scenario.put_state("t", partition, 2, epoch, [2, 1], 5)
    scenario.talk()


async def elect(
    scenario: Scenario, *names: TopicPartition, unclean: bool = False
) -> dict[TopicPartition, BrokerId | ErrorCode]:
    results = await scenario.controller.elect_leaders(names or None, UncleanElection(unclean))
    await scenario.settle()
    return {name: r.code if isinstance(r, KafkaError) else r for name, r in results.items()}


@pytest.mark.case("PRE-01")
@pytest.mark.case("PRE-03")
@pytest.mark.case("PRE-04")
async def test_preferred_by_call() -> None:
    async with Scenario().running(1, 2) as scenario:
        await led_by_the_second(scenario)
        unknown = TopicPartition("nobody", 0)
        assert await elect(scenario, T0, unknown) == {T0: 1, unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        talk = scenario.talk()
        assert scenario.state("t", 0)[:3] == (1, 2, [2, 1])
        assert scenario.state("t", 1)[0] == 2
        assert len(writes(talk)) == 1
        for broker in (1, 2):
            assert requests(talk, broker)[0].startswith("LeaderAndIsr {t-0 leader 1 e2")
        assert await elect(scenario, T0) == {T0: ErrorCode.ELECTION_NOT_NEEDED}
        assert await elect(scenario) == {T1: 1}  # only partitions that needed an election are reported
        assert await elect(scenario) == {}


@pytest.mark.case("PRE-05")
@pytest.mark.case("PRE-06")
async def test_preferred_that_cannot_lead() -> None:
    async with Scenario().running(1, 2) as scenario:
        await led_by_the_second(scenario)
        await scenario.after(lambda: scenario.stop_broker(1))
        for names in ((T0, T1), ()):
            refused = await elect(scenario, *names)
            assert refused == dict.fromkeys((T0, T1), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert await elect(scenario, T0) == {T0: ErrorCode.INVALID_TOPIC_EXCEPTION}


@pytest.mark.case("PRE-09")
@pytest.mark.case("PRE-10")
@pytest.mark.case("PRE-11")
async def test_unclean_by_call() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [2]))
        await scenario.after(lambda: scenario.create_topic("u", [1]))
        for broker in (1, 2):
            await scenario.after(lambda broker=broker: scenario.stop_broker(broker))  # type: ignore[misc]
        await scenario.after(lambda: scenario.start_broker(1))
        assert scenario.state("t", 0)[:3] == (-1, 2, [2])
        u0 = TopicPartition("u", 0)
        assert await elect(scenario, u0, unclean=True) == {u0: ErrorCode.ELECTION_NOT_NEEDED}
        assert await elect(scenario, unclean=True) == {T0: 1, T1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        assert scenario.state("t", 0)[:3] == (1, 3, [1])
        assert scenario.metrics.value("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec") == 1


async def test_unclean_election_switched_on_for_a_topic() -> None:
    async with Scenario().running(1, 2) as scenario:
        for topic in ("t", "u"):
            await scenario.after(lambda topic=topic: scenario.create_topic(topic, [1, 2]))  # type: ignore[misc]
        for broker in (1, 2):
            await scenario.after(lambda broker=broker: scenario.stop_broker(broker))  # type: ignore[misc]
        await scenario.after(lambda: scenario.start_broker(1))
        allowed = '{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
        scenario.zk.put("/config/topics/t", allowed)
        change = '{"version":2,"entity_path":"topics/t"}'
        await scenario.after(lambda: scenario.zk.put("/config/changes/config_change_0000000000", change))
        assert scenario.state("t", 0)[:3] == (1, 3, [1])
        assert scenario.state("u", 0)[:3] == (-1, 2, [2])


@pytest.mark.case("ULE-03")
@pytest.mark.parametrize(("entity", "elected"), [("<default>", True), ("9", True), ("1", False)])
async def test_unclean_election_switched_on_for_the_cluster(entity: str, elected: bool) -> None:
    """By the cluster's default or the value of the controller's own broker (9); other brokers do not count."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        no = {"unclean.leader.election.enable": "false"}
        await scenario.after(lambda: scenario.create_topic("careful", [1, 2], config=no))
        for broker in (1, 2):
            await scenario.after(lambda broker=broker: scenario.stop_broker(broker))  # type: ignore[misc]
        await scenario.after(lambda: scenario.start_broker(1))
        allowed = '{"version":1,"config":{"unclean.leader.election.enable":"true","log.retention.ms":"1"}}'
        scenario.zk.put(f"/config/brokers/{entity}", allowed)
        change = f'{{"version":2,"entity_path":"brokers/{entity}"}}'
        await scenario.after(lambda: scenario.zk.put("/config/changes/config_change_0000000000", change))
        assert scenario.state("t", 0)[:3] == ((1, 3, [1]) if elected else (-1, 2, [2]))
        assert scenario.state("careful", 0)[:3] == (-1, 2, [2])


async def test_a_switch_that_cannot_be_read_says_no() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        for broker in (1, 2):
            await scenario.after(lambda broker=broker: scenario.stop_broker(broker))  # type: ignore[misc]
        scenario.zk.put("/config/brokers/<default>", '{"version":1,"config":{"unclean.leader.election.enable":"yes"}}')
        scenario.zk.put("/config/brokers/9", "junk")
        await scenario.after(lambda: scenario.start_broker(1))
        assert scenario.state("t", 0)[:3] == (-1, 2, [2])
        skipped = {record.cause for record in scenario.sink.decisions("znode-skipped")}
        assert skipped == {"/config/brokers/<default>", "/config/brokers/9"}


@pytest.mark.case("PRE-12")
async def test_preferred_by_znode() -> None:
    async with Scenario().running(1, 2) as scenario:
        await led_by_the_second(scenario)
        asked = [T0, TopicPartition("nobody", 0)]  # the second is skipped
        document = preferred_replica_election.encode(asked)
        assert json.loads(document) == {"version": 1, "partitions": [{"topic": n.topic, "partition": 0} for n in asked]}
        assert list(preferred_replica_election.decode(ZNODE, document)) == asked
        for _ in range(2):  # the second finds nothing to do, and is deleted too
            await scenario.after(lambda: scenario.zk.put(ZNODE, document))
            assert scenario.state("t", 0)[0] == 1
            assert ZNODE not in scenario.zk.tree.nodes
        await scenario.after(lambda: scenario.zk.put(ZNODE, "{"))
        assert scenario.sink.decisions("znode-skipped")
        assert scenario.controller.is_active
        with pytest.raises(NodeExists):
            await scenario.zk.create(ZNODE, document)


@pytest.mark.case("CTL-13")
async def test_the_preferred_leader_returns_and_is_elected_by_znode() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        assert await scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(-1)) == []
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0)[:3] == (2, 1, [2])
        await scenario.after(lambda: scenario.start_broker(1))
        scenario.put_state("t", 0, 2, 1, [2, 1], 5)  # back in the ISR: the leader wrote it in the same epoch
        await scenario.after(lambda: scenario.zk.put(ZNODE, preferred_replica_election.encode([T0])))
        assert scenario.state("t", 0)[:3] == (1, 2, [2, 1])
        assert ZNODE not in scenario.zk.tree.nodes


@pytest.mark.case("CTL-14")
async def test_the_znode_goes_even_if_the_preferred_leader_is_dead() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        await scenario.after(lambda: scenario.stop_broker(1))
        await scenario.after(lambda: scenario.zk.put(ZNODE, preferred_replica_election.encode([T0])))
        assert scenario.state("t", 0)[:3] == (2, 1, [2])
        assert ZNODE not in scenario.zk.tree.nodes


@pytest.mark.case("PRE-13")
async def test_a_topic_older_than_every_broker() -> None:
    async with Scenario().running() as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [0, 1, 2]))
        for broker in (2, 0, 1):
            await scenario.after(lambda broker=broker: scenario.start_broker(broker))  # type: ignore[misc]
        assert scenario.state("t", 0)[:3] == (2, 0, [2])
        scenario.put_state("t", 0, 2, 0, [2, 0, 1], 5)
        assert await elect(scenario, T0) == {T0: 0}
        assert scenario.state("t", 0)[:3] == (0, 1, [2, 0, 1])


async def test_a_new_controller_finds_the_znode() -> None:
    """In Kafka a partition in it that has never had a leader made one controller after another fail."""
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("t", [1, 2], [7])
    scenario.put_state("t", 0, 2, 3, [2, 1], 3)
    partitions = '{"topic":"t","partition":0},{"topic":"t","partition":1}'
    scenario.zk.put(ZNODE, f'{{"version":1,"partitions":[{partitions}]}}')
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.is_active
        assert scenario.state("t", 0)[:3] == (1, 4, [2, 1])
        assert ZNODE not in scenario.zk.tree.nodes


async def balance(scenario: Scenario) -> list[str]:
    return await scenario.after(lambda: scenario.controller._queue.put_nowait(BalanceLeaders()))


async def test_automatic_balance_waits_for_the_share_and_for_the_isr() -> None:
    async with Scenario(leader_imbalance_per_broker_percentage="50").running(1, 2) as scenario:
        await led_by_the_second(scenario)
        assert await elect(scenario, T0) == {T0: 1}
        scenario.talk()
        assert (
            await balance(scenario) == []
        )  # broker 1 lacks half of its preferred leaderships, which is not more than 50 %
        await scenario.after(lambda: scenario.stop_broker(1))
        await scenario.after(lambda: scenario.start_broker(1))
        assert await balance(scenario) == []  # it is not in the ISR yet
        for partition in (0, 1):
            epoch = scenario.state("t", partition)[1]
            scenario.put_state("t", partition, 2, epoch, [2, 1], 5)
        notification = '{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":1}]}'
        await scenario.after(lambda: scenario.zk.put("/isr_change_notification/isr_change_0000000000", notification))
        await balance(scenario)
        assert [scenario.state("t", partition)[0] for partition in (0, 1)] == [1, 1]
        assert scenario.controller.statistics().counts.preferred_replica_imbalance == 0


async def test_automatic_balance_leaves_out_what_moves_and_only_that() -> None:
    async with Scenario(leader_imbalance_per_broker_percentage="0").running(1, 2, 3) as scenario:
        await led_by_the_second(scenario)
        target = tuple(map(BrokerId, (1, 3)))
        assert await scenario.controller.alter_partition_reassignments({T1: target}) == {T1: None}
        notification = '{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":1}]}'
        await scenario.after(lambda: scenario.zk.put("/isr_change_notification/isr_change_0000000000", notification))
        await balance(scenario)
        assert [scenario.state("t", partition)[0] for partition in (0, 1)] == [1, 2]
