"""The two state machines, with what they write and send: each transition as a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.controller.decisions.leadership import offline_rule, preferred_rule, replicas_offline, replicas_online
from klamm.controller.decisions.steps import ChangeStates, Decision, MoveReplicas, Rule, only
from klamm.controller.term import Term
from klamm.model.elections import UncleanElection
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment

from .scenario import Scenario
from .test_traces import requests

T0 = TopicPartition("t", 0)


def term_of(scenario: Scenario) -> Term:
    term = scenario.controller._term
    assert term is not None
    return term


def index_of(scenario: Scenario, name: TopicPartition = T0) -> int:
    index = term_of(scenario).context.partition(*name)
    assert index is not None
    return index


def replica_state(scenario: Scenario, broker: int, name: TopicPartition = T0) -> ReplicaState:
    return term_of(scenario).context.replicas.state_of(index_of(scenario, name), BrokerId(broker))


def partition_state(scenario: Scenario, name: TopicPartition = T0) -> PartitionState:
    return term_of(scenario).context.partition_state_of(index_of(scenario, name))


async def run(scenario: Scenario, decision: Decision) -> list[str]:
    await term_of(scenario).runner.run(decision, "test")
    await scenario.settle()
    return scenario.talk()


async def move_replica(scenario: Scenario, broker: int, to: ReplicaState) -> list[str]:
    return await run(scenario, only(MoveReplicas({BrokerId(broker): [index_of(scenario)]}, to)))


async def to_online(scenario: Scenario, rule: Rule) -> list[str]:
    return await run(scenario, only(ChangeStates([index_of(scenario)], rule, to=PartitionState.ONLINE)))


async def with_topic(scenario: Scenario, *replicas: Sequence[int]) -> None:
    await scenario.after(lambda: scenario.create_topic("t", *replicas))


# --- partitions ---


@pytest.mark.case("PSM-05")
@pytest.mark.case("CTL-09")
async def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    async with Scenario().running(2, 3) as scenario:
        talk = await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        assert scenario.state("t", 0) == (2, 0, [2, 3], 0)
        told = [line for line in talk if "LeaderAndIsr" in line]
        said = "LeaderAndIsr {t-0 leader 2 e0 isr [2, 3] v0 new}"
        assert told == [f"2 <- {said}", f"3 <- {said}"]


@pytest.mark.case("PSM-08")
async def test_the_preferred_strategy_writes_a_new_epoch_even_for_the_same_leader() -> None:
    """Callers ask only where another broker leads; the rule itself does not check that."""
    async with Scenario().running(5) as scenario:
        await with_topic(scenario, [5])
        scenario.put_state("t", 0, 5, 3, [5], 5)  # unknown to the context: the state is read again
        term = term_of(scenario)
        talk = await to_online(scenario, preferred_rule(term.context))
        assert scenario.state("t", 0) == (5, 4, [5], 2)
        assert requests(talk, 5)[0] == "LeaderAndIsr {t-0 leader 5 e4 isr [5] v2}"
        assert partition_state(scenario) is PartitionState.ONLINE


@pytest.mark.case("PSM-11")
async def test_a_live_member_of_the_isr_is_elected_without_a_look_at_the_configuration() -> None:
    async with Scenario().running(1, 5) as scenario:
        await with_topic(scenario, [5, 1])
        await scenario.after(lambda: scenario.stop_broker(1))
        await scenario.after(lambda: scenario.stop_broker(5))
        assert scenario.state("t", 0)[:3] == (-1, 2, [5])
        scenario.zk.put("/config/topics/t", "nobody could read this")
        talk = await scenario.after(lambda: scenario.start_broker(5))
        assert scenario.state("t", 0) == (5, 3, [5], 3)
        assert "LeaderAndIsr {t-0 leader 5 e3 isr [5] v3}" in requests(talk, 5)
        assert not scenario.sink.decisions("znode-skipped")


@pytest.mark.case("PSM-12")
async def test_unclean_by_the_caller_does_not_look_at_the_configuration() -> None:
    async with Scenario().running(1, 2) as scenario:
        await with_topic(scenario, [1, 2])
        await scenario.after(lambda: scenario.stop_broker(2))
        await scenario.after(lambda: scenario.stop_broker(1))
        await scenario.after(lambda: scenario.start_broker(2))
        assert (partition_state(scenario), scenario.state("t", 0)[:3]) == (PartitionState.OFFLINE, (-1, 2, [1]))
        scenario.zk.put("/config/topics/t", "nobody could read this")
        skipped = len(scenario.sink.decisions("znode-skipped"))
        term = term_of(scenario)
        talk = await to_online(scenario, offline_rule(term.context, UncleanElection.ALLOWED))
        assert scenario.state("t", 0)[:3] == (2, 3, [2])
        assert [line for line in talk if "LeaderAndIsr" in line] == ["2 <- LeaderAndIsr {t-0 leader 2 e3 isr [2] v3}"]
        assert len(scenario.sink.decisions("znode-skipped")) == skipped


# --- replicas ---


@pytest.mark.case("RSM-01")
@pytest.mark.case("RSM-02")
@pytest.mark.case("RSM-03")
async def test_replicas_of_a_new_controller_are_online_where_their_broker_is() -> None:
    scenario = Scenario()
    scenario.prepare(5)
    scenario.create_topic("t", [5])
    scenario.put_state("t", 0, 5, 2, [5], 3)
    scenario.create_topic("u", [100])
    scenario.put_state("u", 0, 100, 2, [100], 3)
    async with scenario.controller.running():
        await scenario.settle()
        assert replica_state(scenario, 5) is ReplicaState.ONLINE
        assert replica_state(scenario, 100, TopicPartition("u", 0)) is ReplicaState.OFFLINE


def unborn(scenario: Scenario, *replicas: int) -> None:
    """t-0 in the context only: NonExistent, without a state, unknown to ZooKeeper."""
    term_of(scenario).context.add_partitions("t", {0: Assignment(tuple(map(BrokerId, replicas)))})


@pytest.mark.case("RSM-04")
async def test_a_new_replica_of_a_partition_without_leader_hears_nothing() -> None:
    async with Scenario().running(1) as scenario:
        unborn(scenario, 1)
        assert await move_replica(scenario, 1, ReplicaState.NEW) == []
        assert replica_state(scenario, 1) is ReplicaState.NEW


@pytest.mark.case("RSM-05")
async def test_a_new_replica_of_a_led_partition_hears_that_it_is_new() -> None:
    """A reassignment makes such replicas; only their brokers receive is_new."""
    async with Scenario().running(1, 2, 3) as scenario:
        await with_topic(scenario, [1, 2])
        target = (BrokerId(1), BrokerId(2), BrokerId(3))
        assert await scenario.controller.alter_partition_reassignments({T0: target}) == {T0: None}
        await scenario.settle()
        talk = scenario.talk()
        assert requests(talk, 3)[0] == "LeaderAndIsr {t-0 leader 1 e1 isr [1, 2] v1 new}"
        for broker in (1, 2):
            assert requests(talk, broker)[0] == "LeaderAndIsr {t-0 leader 1 e1 isr [1, 2] v1}"


@pytest.mark.case("RSM-07")
async def test_a_new_replica_goes_online_without_another_word() -> None:
    """Its broker received is_new when it became New. The assignment already names it, so nothing is appended."""
    async with Scenario().running(1, 2) as scenario:
        talk = await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        for broker in (1, 2):
            assert replica_state(scenario, broker) is ReplicaState.ONLINE
            assert sum("LeaderAndIsr" in line for line in requests(talk, broker)) == 1
        assert term_of(scenario).context.assignment_of(index_of(scenario)).replicas == (1, 2)


@pytest.mark.case("RSM-09")
async def test_a_new_replica_without_leader_goes_offline() -> None:
    async with Scenario().running(1, 2) as scenario:
        unborn(scenario, 1)
        await move_replica(scenario, 1, ReplicaState.NEW)
        term = term_of(scenario)
        gone = {BrokerId(1): [index_of(scenario)]}
        talk = await run(scenario, replicas_offline(term.context, gone))
        live = "UpdateMetadata {} live [1, 2, 9]"
        assert talk == [f"1 <- {live}", "1 <- StopReplica2 t-0 e-1", f"2 <- {live}", f"9 <- {live}"]
        assert replica_state(scenario, 1) is ReplicaState.OFFLINE


@pytest.mark.case("RSM-12")
@pytest.mark.case("RSM-13")
async def test_the_leader_goes_offline_and_comes_back() -> None:
    async with Scenario().running(5, 6) as scenario:
        await with_topic(scenario, [5, 6])
        term, here = term_of(scenario), {BrokerId(5): [index_of(scenario)]}
        talk = await run(scenario, replicas_offline(term.context, here))
        assert scenario.state("t", 0) == (-1, 1, [6], 1)
        assert "StopReplica2 t-0 e-1" in requests(talk, 5)
        told = [line for line in talk if "LeaderAndIsr" in line]
        assert told == ["6 <- LeaderAndIsr {t-0 leader -1 e1 isr [6] v1}"]
        known = term.context.state_of(index_of(scenario))
        assert known is not None
        assert (known.leader, known.leader_epoch, known.isr) == (-1, 1, (6,))
        assert replica_state(scenario, 5) is ReplicaState.OFFLINE

        talk = await run(scenario, replicas_online(term.context, here))
        assert [line for line in talk if "LeaderAndIsr" in line] == ["5 <- LeaderAndIsr {t-0 leader -1 e1 isr [6] v1}"]
        assert replica_state(scenario, 5) is ReplicaState.ONLINE


@pytest.mark.case("RSM-21")
async def test_a_replica_that_failed_to_be_deleted_may_come_back() -> None:
    async with Scenario().running(1, 2) as scenario:
        await with_topic(scenario, [1, 2])
        term, here = term_of(scenario), {BrokerId(2): [index_of(scenario)]}
        for state in (ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE):
            await move_replica(scenario, 2, state)
        talk = await run(scenario, replicas_online(term.context, here))
        told = [line for line in talk if "LeaderAndIsr" in line]
        assert told == ["2 <- LeaderAndIsr {t-0 leader 1 e0 isr [1, 2] v0}"]
        for state in (ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE, ReplicaState.OFFLINE):
            await move_replica(scenario, 2, state)
            assert replica_state(scenario, 2) is state


# --- deletion ---


@pytest.mark.case("TDM-05")
async def test_two_topics_are_deleted_in_the_steps_of_one() -> None:
    """Topics are batched: the requests about the second go out with those about the first."""

    async def deleted(*topics: str) -> tuple[int, list[str]]:
        async with Scenario().running(1, 2, 3) as scenario:
            for topic in topics:
                scenario.create_topic(topic, [1, 2, 3], [2, 3, 1])
            await scenario.settle()
            scenario.talk()
            for topic in topics:
                scenario.zk.put(f"/admin/delete_topics/{topic}")
            await scenario.settle()
            assert scenario.controller.statistics().counts.topics == 0
            talk = scenario.talk()
            return sum(" <- " in line for line in talk), requests(talk, 1)

    requests_of_one, _ = await deleted("a")
    requests_of_two, heard = await deleted("a", "b")
    assert requests_of_two == requests_of_one
    (deletion,) = [line for line in heard if "delete" in line]
    assert deletion == "StopReplica2 a-0 delete e-1, a-1 delete e-1, b-0 delete e-1, b-1 delete e-1"
