"""Whole sequences of events as conversations: ZooKeeper writes, then the requests that each broker receives.

Controller epoch 5 on broker 9, which hosts no replica. Two differences from Kafka 2.5 are intended: no LeaderAndIsr
with an epoch that the broker already has, and the live brokers are sent after every failure (KAFKA-13225).
"""

from __future__ import annotations

import pytest

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId

from .scenario import Scenario


def requests(talk: list[str], broker: int) -> list[str]:
    return [line.partition(" <- ")[2] for line in talk if line.startswith(f"{broker} <- ")]


def writes(talk: list[str]) -> list[str]:
    return [line for line in talk if " <- " not in line]


@pytest.mark.case("PSM-04")
@pytest.mark.case("CCM-02")
@pytest.mark.case("CCM-03")
async def test_1_topic_created() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        talk = await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        assert writes(talk) == [
            "create /brokers/topics/t/partitions",
            "create /brokers/topics/t/partitions/0",
            "create /brokers/topics/t/partitions/0/state "
            '{"controller_epoch":5,"leader":1,"version":1,"leader_epoch":0,"isr":[1,2,3]}',
        ]
        metadata = "UpdateMetadata {t-0 leader 1 e0 isr [1, 2, 3] v0} live [1, 2, 3, 9]"
        for broker in (1, 2, 3):
            assert requests(talk, broker) == ["LeaderAndIsr {t-0 leader 1 e0 isr [1, 2, 3] v0 new}", metadata]
        assert requests(talk, 9) == [metadata]


@pytest.mark.case("CTL-20")
async def test_2_to_7_three_brokers_die_and_return() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))

        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (2, 1, [2, 3], 1)
        for broker in (2, 3):
            assert requests(talk, broker) == [
                "LeaderAndIsr {t-0 leader 2 e1 isr [2, 3] v1}",
                "UpdateMetadata {t-0 leader 2 e1 isr [2, 3] v1 offline [1]} live [2, 3, 9]",
                "UpdateMetadata {} live [2, 3, 9]",
            ]

        talk = await scenario.after(lambda: scenario.stop_broker(3))
        assert scenario.state("t", 0) == (2, 2, [2], 2)
        assert requests(talk, 2) == [
            "LeaderAndIsr {t-0 leader 2 e2 isr [2] v2}",
            "UpdateMetadata {t-0 leader 2 e2 isr [2] v2 offline [1, 3]} live [2, 9]",
            "UpdateMetadata {} live [2, 9]",
        ]

        talk = await scenario.after(lambda: scenario.stop_broker(2))  # the last member stays in the ISR
        assert scenario.state("t", 0) == (-1, 3, [2], 3)
        assert requests(talk, 9) == [
            "UpdateMetadata {t-0 leader -1 e3 isr [2] v3 offline [1, 2, 3]} live [9]",
            "UpdateMetadata {} live [9]",
        ]
        assert scenario.controller.statistics().counts.offline_partitions == 1

        talk = await scenario.after(lambda: scenario.start_broker(1))  # a clean election is impossible
        assert writes(talk) == []
        assert requests(talk, 9)[0] == "UpdateMetadata {} live [1, 9]"
        assert requests(talk, 1)[:2] == [
            "UpdateMetadata {t-0 leader -1 e3 isr [2] v3 offline [2, 3]} live [1, 9]",
            "LeaderAndIsr {t-0 leader -1 e3 isr [2] v3}",
        ]
        assert scenario.sink.decisions("election-failed")

        talk = await scenario.after(lambda: scenario.start_broker(2))
        assert scenario.state("t", 0) == (2, 4, [2], 4)
        for broker in (1, 2):
            assert "LeaderAndIsr {t-0 leader 2 e4 isr [2] v4}" in requests(talk, broker)

        # The leader adds 1 to the ISR again: the same epoch, so only UpdateMetadata is sent.
        scenario.put_state("t", 0, 2, 4, [2, 1], 5)
        notification = '{"version":1,"partitions":[{"topic":"t","partition":0}]}'
        talk = await scenario.after(
            lambda: scenario.zk.put("/isr_change_notification/isr_change_0000000000", notification)
        )
        assert writes(talk) == ["delete /isr_change_notification/isr_change_0000000000"]
        assert requests(talk, 1) == ["UpdateMetadata {t-0 leader 2 e4 isr [2, 1] v5 offline [3]} live [1, 2, 9]"]


@pytest.mark.case("CTL-08")
async def test_the_first_controller_creates_a_topic() -> None:
    async with Scenario().running(0, epoch=0) as scenario:
        talk = await scenario.after(lambda: scenario.create_topic("t", [0]))
        state = '{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
        assert writes(talk)[-1] == f"create /brokers/topics/t/partitions/0/state {state}"


@pytest.mark.case("CTL-16")
async def test_the_only_replica_dies_and_everybody_hears_it() -> None:
    """No broker is left to receive LeaderAndIsr, but all receive UpdateMetadata without a leader."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (-1, 1, [1], 1)
        assert "UpdateMetadata {t-0 leader -1 e1 isr [1] v1 offline [1]} live [2, 9]" in requests(talk, 2)


async def test_a_replica_that_was_not_in_sync_dies() -> None:
    """Nothing is written, but brokers receive the partition with our controller epoch from then on, as in Kafka."""
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.put_state("t", 0, 1, 3, [1], 4)
        talk = await scenario.after(lambda: scenario.stop_broker(2))
        assert writes(talk) == []
        told = [body for broker, key, body in scenario.network.requests if broker == 3 and body.topic_states]
        assert told[-1].topic_states[0].partition_states[0].controller_epoch == 5


@pytest.mark.case("PSM-13")
async def test_5_with_unclean_election_allowed_by_the_topic() -> None:
    async with Scenario().running(1, 2) as scenario:
        unclean = {"unclean.leader.election.enable": "true"}
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], config=unclean))
        await scenario.after(lambda: scenario.stop_broker(1))
        await scenario.after(lambda: scenario.stop_broker(2))
        assert scenario.state("t", 0) == (-1, 2, [2], 2)
        talk = await scenario.after(lambda: scenario.start_broker(1))
        assert scenario.state("t", 0) == (1, 3, [1], 3)
        assert requests(talk, 1)[-2:] == [
            "LeaderAndIsr {t-0 leader 1 e3 isr [1] v3}",
            "UpdateMetadata {t-0 leader 1 e3 isr [1] v3 offline [2]} live [1, 9]",
        ]
        assert scenario.metrics.value("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec") == 1


@pytest.mark.case("CTL-17")
@pytest.mark.case("CTL-18")
@pytest.mark.case("CTL-19")
async def test_9_controlled_shutdown() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [2, 1], [1]))
        remaining = await scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(-1))
        assert remaining == []  # the single-replica partition is not reported
        await scenario.settle()
        talk = scenario.talk()
        assert scenario.state("t", 0) == (2, 1, [2], 1)
        assert scenario.state("t", 1) == (2, 1, [2], 1)  # the leader stays, but the epoch grows
        for broker in (1, 2):
            assert requests(talk, broker)[0] == "LeaderAndIsr {t-0 leader 2 e1 isr [2] v1}"
        assert "StopReplica2 t-1 e-1" in requests(talk, 1)
        assert "UpdateMetadata {t-0 leader 2 e1 isr [2] v1 offline [1]} live [1, 2, 3, 9]" in requests(talk, 9)

        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (2, 1, [2], 1)  # nothing is written for partitions that were handed over
        assert scenario.state("t", 2) == (-1, 1, [1], 1)
        assert not any("LeaderAndIsr {t-0" in line for line in talk)


async def test_controlled_shutdown_is_refused_by_epoch_and_by_ignorance() -> None:
    async with Scenario().running(1) as scenario:
        epoch = scenario.zk.tree.nodes["/brokers/ids/1"].czxid
        with pytest.raises(KafkaError) as stale:
            await scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(epoch - 1))
        assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
        with pytest.raises(KafkaError) as unknown:
            await scenario.controller.controlled_shutdown(BrokerId(7), BrokerEpoch(-1))
        assert unknown.value.code is ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.case("TDM-03")
@pytest.mark.case("TDM-04")
@pytest.mark.case("RSM-14")
@pytest.mark.case("RSM-19")
@pytest.mark.case("CCM-10")
async def test_deletion() -> None:
    async with Scenario().running(2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [2, 3]))
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        state = "/brokers/topics/t/partitions/0/state"
        assert writes(talk) == [
            f'set {state} {{"controller_epoch":5,"leader":-1,"version":1,"leader_epoch":1,"isr":[3]}}',
            f'set {state} {{"controller_epoch":5,"leader":-1,"version":1,"leader_epoch":2,"isr":[3]}}',
            f"delete {state}",
            "delete /brokers/topics/t/partitions/0",
            "delete /brokers/topics/t/partitions",
            "delete /config/topics/t",
            "delete /brokers/topics/t",
            "delete /admin/delete_topics/t",
        ]
        for broker in (2, 3):
            assert requests(talk, broker) == [
                "UpdateMetadata {t-0 leader -2 e0 isr [2, 3] v0} live [2, 3, 9]",
                "StopReplica2 t-0 e-1",
                "StopReplica2 t-0 delete e-1",
            ]
        counts = scenario.controller.statistics().counts
        assert (counts.topics, counts.partitions, counts.topics_to_delete, counts.offline_partitions) == (0, 0, 0, 0)


@pytest.mark.case("DEL-02")
async def test_deletion_waits_for_a_dead_broker_and_says_so() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        await scenario.after(lambda: scenario.stop_broker(2))
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert requests(talk, 1)[-1] == "StopReplica2 t-0 delete e-1"
        assert "/admin/delete_topics/t" in scenario.zk.tree.nodes
        ((topic, reason),) = scenario.controller.statistics().deletions
        assert topic == "t"
        assert "brokers [2]" in reason
        talk = await scenario.after(lambda: scenario.start_broker(2))
        assert requests(talk, 2)[-1] == "StopReplica2 t-0 delete e-1"
        assert "/admin/delete_topics/t" not in scenario.zk.tree.nodes
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


@pytest.mark.case("TDM-02")
@pytest.mark.case("DEL-07")
async def test_deletion_switched_off_erases_the_markers() -> None:
    async with Scenario(delete_topic_enable="false").running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert talk == ["delete /admin/delete_topics/t"]


@pytest.mark.case("DEL-03")
async def test_a_marker_for_an_unknown_topic_is_erased() -> None:
    async with Scenario().running(1) as scenario:
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/nobody"))
        assert talk == ["delete /admin/delete_topics/nobody"]


async def test_a_topic_gone_from_zookeeper_is_forgotten_and_told() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        talk = await scenario.after(lambda: scenario.zk.remove("/brokers/topics/t"))
        assert requests(talk, 1) == ["UpdateMetadata {t-0 leader -2 e0 isr [1] v0} live [1, 9]"]
        assert scenario.controller.statistics().counts.topics == 0
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        assert scenario.state("t", 0) == (1, 0, [1], 0)


@pytest.mark.case("CTL-10")
@pytest.mark.case("CTL-11")
@pytest.mark.case("TOP-11")
async def test_a_topic_grows() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        talk = await scenario.after(lambda: scenario.create_topic("t", [1], [7, 2]))
        assert writes(talk) == [
            "create /brokers/topics/t/partitions/1",
            "create /brokers/topics/t/partitions/1/state "
            '{"controller_epoch":5,"leader":2,"version":1,"leader_epoch":0,"isr":[2]}',
        ]
        assert requests(talk, 2)[0] == "LeaderAndIsr {t-1 leader 2 e0 isr [2] v0 new}"


@pytest.mark.case("BEP-01")
async def test_a_bounced_broker_fails_and_starts_with_its_new_epoch() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))

        def bounce() -> None:
            scenario.stop_broker(1)
            scenario.start_broker(1)

        await scenario.after(bounce)
        assert scenario.state("t", 0) == (2, 1, [2], 1)
        epoch = scenario.zk.tree.nodes["/brokers/ids/1"].czxid
        assert {body.broker_epoch for broker, _, body in scenario.network.requests[-4:] if broker == 1} == {epoch}


async def test_who_is_shutting_down_hears_that_it_leads_no_longer() -> None:
    """KAFKA-7482. Its topic could not be read when it announced its shutdown, so nothing was moved then."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", "junk"))
        scenario.put_state("t", 0, leader=1, epoch=3, isr=[1, 2], controller=4)
        await scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(-1))
        talk = await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        assert scenario.state("t", 0) == (2, 4, [2], 1)
        assert "LeaderAndIsr {t-0 leader 2 e4 isr [2] v1}" in requests(talk, 1)


async def test_a_state_that_is_there_already_is_told_though_nobody_can_lead() -> None:
    """A topic that could not be read at the election is repaired while its only replica in sync is down."""
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", "junk"))
        scenario.put_state("t", 0, leader=2, epoch=3, isr=[2], controller=4)
        talk = await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        assert scenario.state("t", 0) == (2, 3, [2], 0)
        assert "UpdateMetadata {t-0 leader 2 e3 isr [2] v0 offline [2]} live [1, 9]" in requests(talk, 1)


async def test_a_state_that_is_there_already_is_led_when_a_replica_comes() -> None:
    """No replica could lead when the topic was repaired. Its state is found only now, and not left to the timer."""
    async with Scenario().running() as scenario:
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", "junk"))
        scenario.put_state("t", 0, leader=2, epoch=3, isr=[2], controller=4)
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        await scenario.after(lambda: scenario.start_broker(2))
        assert scenario.state("t", 0)[:2] == (2, 4)
