"""A deletion resumes from every state in which it is found: what is left follows from the context (design D15)."""

from __future__ import annotations

import pytest

from klamm.controller.decisions.deletion import DeletionStage, what_is_left

from .scenario import Scenario


@pytest.mark.case("TDM-01")
async def test_a_new_controller_finds_deletions_half_done() -> None:
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("foo", [1, 2])
    scenario.put_state("foo", 0, 1, 4, [1, 2], 3)
    scenario.create_topic("bar", [1, 7])
    scenario.put_state("bar", 0, 1, 4, [1], 3)
    scenario.create_topic("baz", [7])
    scenario.zk.put("/admin/delete_topics/foo")
    scenario.zk.put("/admin/delete_topics/bar")
    async with scenario.controller.running():
        await scenario.settle()
        assert "/brokers/topics/foo" not in scenario.zk.tree.nodes
        ((topic, reason),) = scenario.controller.statistics().deletions
        assert (topic, "brokers [7]" in reason) == ("bar", True)
        counts = scenario.controller.statistics().counts
        assert (counts.topics_to_delete, counts.topics_ineligible_to_delete) == (1, 1)
        # No replica of it is deleted and no epoch raised until a broker that holds a replica starts.
        assert not any("StopReplica" in line and "bar" in line for line in scenario.talk())
        assert scenario.state("bar", 0)[:3] == (1, 4, [1])
        await scenario.after(lambda: scenario.start_broker(7))
        assert "/brokers/topics/bar" not in scenario.zk.tree.nodes


@pytest.mark.case("TDM-06")
async def test_a_topic_that_is_reassigned_waits() -> None:
    async with Scenario().running(1, 2) as scenario:
        moving = '{"version":2,"partitions":{"0":[2,1]},"adding_replicas":{"0":[2]},"removing_replicas":{"0":[1]}}'
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", moving))
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert talk == []
        assert scenario.controller.statistics().deletions == (("t", "reassignment of t-0"),)


async def test_each_answer_alone_moves_it_on() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.network.silent.add(2)
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        term = scenario.controller._term
        assert term is not None
        left = what_is_left(term.context, "t", retry=True)
        assert left == (DeletionStage.WAIT, "answers to StopReplica from brokers [2]")
        # The silent broker dies: it will not answer, and the reason changes.
        await scenario.after(lambda: scenario.stop_broker(2))
        assert "brokers [2], which are dead" in what_is_left(term.context, "t", retry=True).waits_for
        scenario.network.silent.clear()
        await scenario.after(lambda: scenario.start_broker(2))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


@pytest.mark.case("DEL-04")
@pytest.mark.case("DEL-15")
async def test_created_and_deleted_again_and_again() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        for _ in range(3):
            for topic in ("a", "b"):
                scenario.create_topic(topic, [1, 2, 3], [2, 3, 1], [3, 1, 2])
            await scenario.settle()
            counts = scenario.controller.statistics().counts
            assert (counts.offline_partitions, counts.preferred_replica_imbalance, counts.partitions) == (0, 0, 6)
            for topic in ("a", "b"):
                scenario.zk.put(f"/admin/delete_topics/{topic}")
            await scenario.settle()
            counts = scenario.controller.statistics().counts
            assert (counts.topics, counts.offline_partitions, counts.preferred_replica_imbalance) == (0, 0, 0)


async def test_growth_of_a_topic_being_deleted_is_undone() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 7]))
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        await scenario.after(lambda: scenario.create_topic("t", [1, 7], [1, 7]))
        assert '"partitions":{"0":[1,7]}' in scenario.zk.text("/brokers/topics/t")


async def test_a_topic_whose_znode_cannot_be_read_waits_until_it_is_mended() -> None:
    """Its replicas still exist on brokers, and the next topic of that name would find them."""
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("t", [1, 2])
    scenario.put_state("t", 0, 1, 7, [1, 2], 3)
    document = scenario.zk.text("/brokers/topics/t")
    scenario.zk.put("/brokers/topics/t", "{")
    scenario.zk.put("/admin/delete_topics/t")
    async with scenario.controller.running():
        await scenario.settle()
        assert "/brokers/topics/t/partitions/0/state" in scenario.zk.tree.nodes
        assert scenario.controller.statistics().deletions == (("t", "its znode to name partitions: it cannot be read"),)
        talk = await scenario.after(lambda: scenario.zk.put("/brokers/topics/t", document))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes
        assert "/admin/delete_topics/t" not in scenario.zk.tree.nodes
        assert {line.split()[0] for line in talk if "StopReplica" in line and "delete" in line} == {"1", "2"}


async def test_brokers_forget_a_partition_whose_state_cannot_be_read() -> None:
    """An earlier controller could read it, and sent it to them."""
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("t", [1])
    scenario.zk.put("/brokers/topics/t/partitions/0/state", "{")
    async with scenario.controller.running():
        await scenario.settle()
        scenario.talk()
        talk = await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes
        assert [line for line in talk if line.startswith("2 <- UpdateMetadata") and "t-0 leader -2" in line]


async def test_a_broker_that_comes_back_hears_what_to_forget() -> None:
    """The broker may have been unreachable without restarting, with the topic in its cache."""
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 7]))
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        talk = await scenario.after(lambda: scenario.start_broker(3))
        assert any("3 <- UpdateMetadata {t-0 leader -2" in line for line in talk)
