"""What commands refuse, and what they say they wait for, with brokers that answer as the test wants."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.fake_brokers import FakeWorld
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.client.admin import Admin
from klamm.client.cluster import ClusterClient
from klamm.model.errors import ErrorCode
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class


class World(FakeWorld):
    """Topic `orders` with one partition on brokers 1 and 9. Broker 9 is dead."""

    def __init__(self) -> None:
        super().__init__(2)
        self.leaders["orders"] = [1]
        reassignments = response_class(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        for broker in self.brokers.values():
            broker.answers[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda *_: reassignments(topics=[])
            broker.answers[ApiKey.DESCRIBE_LOG_DIRS] = partial(directories, broker.number)

    def _topic(self, cls: Any, name: str) -> Any:
        topic = super()._topic(cls, name)
        for partition in topic.partitions:
            partition.replica_nodes, partition.isr_nodes = [1, 9], [1]
        return topic


def directories(broker: int, key: ApiKey, version: int, request: Any) -> Any:
    """Broker 1 has 5,000 bytes of records."""
    cls = response_class(key).DescribeLogDirsResult
    entry = cls.DescribeLogDirsTopic.DescribeLogDirsPartition(partition_index=0, partition_size=5_000)
    topics = [cls.DescribeLogDirsTopic(name="orders", partitions=[entry])] if broker == 1 and request.topics else []
    return response_class(key)(results=[cls(log_dir="/data", topics=topics)])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVER", "b1:9092")
    monkeypatch.setattr("klamm.client.blocking.ClusterClient", partial(ClusterClient, network=made))
    return made


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    return result.stderr


def asked(world: World, key: ApiKey) -> bool:
    return any(entry[0] is key for broker in world.brokers.values() for entry in broker.asked)


def test_a_topic_is_not_deleted_without_yes(world: World) -> None:
    said = refusal("topics", "delete", "orders")
    assert said == "klamm: this deletes topic orders with 1 partition and 5.0 kB of records: add --yes to do it\n"
    assert not asked(world, ApiKey.DELETE_TOPICS)


def test_a_deletion_that_is_not_done_in_time_says_what_it_waits_for(world: World) -> None:
    cls = response_class(ApiKey.DELETE_TOPICS)
    result = cls.DeletableTopicResult(name="orders", error_code=ErrorCode.REQUEST_TIMED_OUT)
    world.brokers["b1"].answers[ApiKey.DELETE_TOPICS] = lambda *_: cls(responses=[result])
    said = refusal("topics", "delete", "orders", "--yes")
    waits = "which waits for replicas on brokers [9], which are not registered; see klamm deletions"
    assert said == f"klamm: topic orders is marked for deletion, {waits}\n"


def test_a_plan_without_room_is_not_started(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that tell their free space have 4,000 bytes. Those before 3.3 do not tell it and are not judged."""
    log_dirs = Admin.log_dirs

    async def with_space(self: Admin, *arguments: Any) -> list[Any]:
        found = await log_dirs(self, *arguments)
        for entry in found:
            entry.usable_bytes = 4_000
        return found

    monkeypatch.setattr(Admin, "log_dirs", with_space)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}))
    said = refusal("reassign", "execute", str(plan))
    why = "broker 2 must receive 5.0 kB and has 4.0 kB free; --ignore-space starts it anyway"
    assert said == f"klamm: nothing was started: {why}\n"
    assert not asked(world, ApiKey.ALTER_PARTITION_REASSIGNMENTS)

    cls = response_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    topic = cls.ReassignableTopicResponse
    partition = topic.ReassignablePartitionResponse(partition_index=0)
    world.brokers["b1"].answers[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda *_: cls(
        responses=[topic(name="orders", partitions=[partition])]
    )
    started = CliRunner().invoke(app, ["reassign", "execute", str(plan), "--ignore-space"])
    assert started.stdout == "started: 1 of 1 partitions\n", started.output


def test_brokers_that_are_down_are_named(world: World) -> None:
    listed = CliRunner().invoke(app, ["brokers", "list"])
    assert listed.stdout.splitlines()[-1] == "broker 9 is down and has 1 replica"
    held = CliRunner().invoke(app, ["brokers", "drain", "1"])
    assert (held.exit_code, held.stdout.splitlines()[-1]) == (1, "orders-0 stays: no other replica is in sync: ISR [1]")


def test_a_zookeeper_in_memory_keeps_no_data(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["zookeeper", "--memory", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "--memory keeps nothing" in result.output
