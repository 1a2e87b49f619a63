"""Kafka's data in ZooKeeper, through our codecs and our client, on our server and on the real one.

These are the behaviour cases of the ZooKeeper layer (ZKC). Where Kafka's client returns an error code or version -2,
ours raises the error of that code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.topic_configs import TopicConfigs
from klamm.controller.execution.commit import Committer
from klamm.model.config import TopicConfig, read_broker_config, topic_config
from klamm.model.errors import BadArguments, BadVersion, NodeExists, NoNode
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Create, CreateMode, Delete, Fence, Set, Stat
from klamm.net.clock import SystemClock
from klamm.server.broker_server import BrokerServer
from klamm.server.runtime import real_ports
from klamm.zookeeper.change_notifications import ChangeNotifications, announce
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.trees import delete_tree
from klamm.zookeeper.znodes import (
    config,
    config_change,
    controller,
    controller_epoch,
    isr_change,
    log_dir_event,
    partition_state,
    reassign_partitions,
    topic,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
Connect = Callable[..., Any]


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in ids)


async def outcomes(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


# --- paths ---


@pytest.mark.case("ZKC-01")
async def test_trees_are_made_and_removed(zk: ZooKeeperClient) -> None:
    await zk.ensure_path("/a/b/c/d")
    assert [await zk.exists(path) is not None for path in ("/a", "/a/b", "/a/b/c", "/a/b/c/d")] == [True] * 4
    await zk.ensure_path("/a/b/c/d")  # it exists already
    with pytest.raises(NodeExists):
        await zk.create("/a/b/c/d")
    for call in (zk.ensure_path("a/b"), zk.create("a"), zk.exists("a"), zk.delete("a")):
        with pytest.raises(BadArguments):
            await call
    await zk.write_many([Create(f"/a/b/{number}") for number in range(1200)])
    assert await delete_tree(zk, "/a") is True
    assert await zk.children("/") == []
    assert await delete_tree(zk, "/a") is False


# --- topics ---


@pytest.mark.case("ZKC-02")
async def test_a_topics_assignment(zk: ZooKeeperClient) -> None:
    path = topic.path("orders")
    await zk.ensure_path(topic.PARENT)
    three = {
        0: Assignment(brokers(0, 1)),
        1: Assignment(brokers(2, 0, 1), adding=brokers(2), removing=brokers(1)),
        2: Assignment(brokers(1, 2)),
    }
    await zk.create(path, topic.encode(three))
    read = topic.decode(path, (await zk.get(path)).data)
    assert read.partitions == three
    assert sorted(read.partitions) == [0, 1, 2]
    two = {partition: three[partition] for partition in (0, 1)}
    await zk.set(path, topic.encode(two))
    assert topic.decode(path, (await zk.get(path)).data).partitions == two
    assert await zk.children(topic.PARENT) == ["orders"]


@pytest.mark.case("ZKC-10")
async def test_partition_states_are_made_once_and_set_by_version(zk: ZooKeeperClient) -> None:
    first, second = (partition_state.path(TopicPartition("t", number)) for number in (0, 1))
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(0), brokers(1, 2), ControllerEpoch(4))
    later = LeaderAndIsr(BrokerId(2), LeaderEpoch(1), brokers(2), ControllerEpoch(4))
    for path in (first, second):
        await zk.ensure_path(path.rpartition("/")[0])
    data = partition_state.encode(state)
    assert await zk.write_many([Create(first, data), Create(second, data)]) == [first, second]
    refused = await outcomes(zk.create(first, data), zk.create(second, data))
    assert [(type(error), error.path) for error in refused] == [(NodeExists, first), (NodeExists, second)]
    missing = partition_state.path(TopicPartition("t", 7))
    with pytest.raises(NoNode, match="partitions/7"):
        await zk.set(missing, data, 0)
    written = await zk.write_many([Set(path, partition_state.encode(later), 0) for path in (first, second)])
    assert [result.version for result in written if isinstance(result, Stat)] == [1, 1]
    nodes = await zk.get_many([first, second])
    assert [partition_state.decode(first, node.data) for node in nodes if node] == [later, later]


@pytest.mark.case("ZKC-11")
async def test_of_states_that_are_there_and_not_only_those_are_returned(zk: ZooKeeperClient) -> None:
    names = [TopicPartition("t", number) for number in range(4)]
    paths = [partition_state.path(name) for name in names]
    state = LeaderAndIsr(BrokerId(1), LeaderEpoch(3), brokers(1, 2), ControllerEpoch(4))
    for path in paths[::2]:
        await zk.ensure_path(path)
        await zk.set(path, partition_state.encode(state))
    nodes = await zk.get_many(paths)
    read = {
        name: partition_state.decode(path, node.data)
        for name, path, node in zip(names, paths, nodes, strict=True)
        if node
    }
    assert read == {names[0]: state, names[2]: state}


# --- versions ---


@pytest.mark.case("ZKC-03")
async def test_data_and_version(zk: ZooKeeperClient) -> None:
    assert await zk.get_many(["/a"]) == [None]
    with pytest.raises(NoNode):
        await zk.get("/a")
    await zk.create("/a", b"0")
    for version in (1, 2):
        await zk.set("/a", b"%d" % version, version - 1)
        data, stat = await zk.get("/a")
        assert (data, stat.version) == (b"%d" % version, version)


@pytest.mark.case("ZKC-04")
async def test_conditional_update(zk: ZooKeeperClient) -> None:
    with pytest.raises(NoNode):
        await zk.set("/a", b"1", 0)
    await zk.create("/a", b"0")
    assert (await zk.set("/a", b"1", 0)).version == 1
    with pytest.raises(BadVersion):
        await zk.set("/a", b"2", 0)
    data, stat = await zk.get("/a")
    assert (data, stat.version) == (b"1", 1)


# --- notifications ---


@pytest.mark.case("ZKC-05")
async def test_isr_notifications_are_numbered_and_reading_keeps_duplicates(zk: ZooKeeperClient) -> None:
    await zk.ensure_path(isr_change.PARENT)
    notifications = IsrNotifications(zk, SystemClock())
    for partitions in ([("t", 0), ("u", 1)], [("t", 0)]):
        for name, number in partitions:
            notifications.record(TopicPartition(name, number))
        await notifications.send()
    names = sorted(await zk.children(isr_change.PARENT))
    assert names == ["isr_change_0000000000", "isr_change_0000000001"]
    paths = [isr_change.path(name) for name in names]
    nodes = await zk.get_many(paths)
    assert [node.data for node in nodes if node] == [
        b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":1}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0}]}',
    ]
    read = [isr_change.decode(path, node.data) for path, node in zip(paths, nodes, strict=True) if node]
    assert [*read[0], *read[1]] == [TopicPartition("t", 0), TopicPartition("u", 1), TopicPartition("t", 0)]


@pytest.mark.case("ZKC-06")
@pytest.mark.parametrize("parent", [isr_change.PARENT, log_dir_event.PARENT])
async def test_without_their_parent_there_are_no_notifications_and_deleting_them_is_no_error(
    zk: ZooKeeperClient, parent: str
) -> None:
    await zk.create(controller_epoch.PATH, b"1")
    paths = [f"{parent}/{number:010d}" for number in range(2)]
    assert await zk.children_many([parent]) == [None]
    assert await zk.get_many(paths) == [None, None]
    assert await Committer(zk, 0).delete(paths) == {}  # as the controller does
    handled: list[str] = []

    async def handle(path: str, data: bytes | None) -> None:
        handled.append(path)

    await ChangeNotifications(zk, SystemClock(), f"{parent}/", handle).look()
    assert handled == []


@pytest.mark.case("ZKC-09")
async def test_a_config_change_notice(zk: ZooKeeperClient) -> None:
    assert await zk.exists(config_change.PARENT) is None
    made = [await announce(zk, config_change.PREFIX, config_change.encode(path)) for path in ("topics/t", "clients/c")]
    assert made == ["/config/changes/config_change_0000000000", "/config/changes/config_change_0000000001"]
    data, stat = await zk.get(made[0])
    assert (data, stat.ephemeral_owner) == (b'{"version":2,"entity_path":"topics/t"}', 0)


@pytest.mark.case("ZKC-19")
async def test_change_notifications_are_handled_once_and_in_order(zk: ZooKeeperClient, connect: Connect) -> None:
    writer = await connect()
    handled: list[str] = []
    bad = b'{"version":7}'

    async def handle(path: str, data: bytes | None) -> None:
        handled.append(config_change.decode(path, data))

    async def until(count: int) -> None:
        async with asyncio.timeout(10):
            while len(handled) < count:
                await asyncio.sleep(0.005)

    await announce(writer, config_change.PREFIX, config_change.encode("topics/before"))
    listener = ChangeNotifications(zk, SystemClock(), config_change.PREFIX, handle)
    task = asyncio.create_task(listener.run())
    try:
        await until(1)
        await announce(writer, config_change.PREFIX, bad)  # it is reported, and later ones are still handled
        await asyncio.gather(
            *(announce(writer, config_change.PREFIX, config_change.encode(f"topics/{n}")) for n in range(50))
        )
        await until(51)
        zk.drop_connection()
        await announce(writer, config_change.PREFIX, config_change.encode("topics/last"))
        await until(52)
        assert handled == ["topics/before", *(f"topics/{n}" for n in range(50)), "topics/last"]
        assert listener.last_handled == 52
    finally:
        task.cancel()


# --- reassignment, configuration ---


@pytest.mark.case("ZKC-07")
async def test_the_map_of_reassignments(zk: ZooKeeperClient) -> None:
    path = reassign_partitions.PATH
    await zk.ensure_path("/admin")

    async def read() -> dict[TopicPartition, tuple[BrokerId, ...]]:
        (node,) = await zk.get_many([path])
        return reassign_partitions.decode(path, node.data) if node else {}

    one = {TopicPartition("t", 0): brokers(0, 1), TopicPartition("t", 1): brokers(2)}
    other = {TopicPartition("u", 3): brokers(2, 1)}
    assert await read() == {}
    await zk.create(path, reassign_partitions.encode(one))
    assert await read() == one
    await zk.set(path, reassign_partitions.encode(other))
    assert await read() == other
    await zk.delete(path)
    assert await read() == {}
    await zk.create(path, reassign_partitions.encode(one))
    assert await read() == one


@pytest.mark.case("ZKC-08")
async def test_configuration_of_entities(zk: ZooKeeperClient) -> None:
    path, defaults = config.topic_path("t"), TopicConfig()
    await zk.ensure_path(config.type_path(config.TOPICS))
    configs = TopicConfigs(zk, SystemClock(), defaults, patience=0.0)
    assert config.decode(path, None) == {}
    assert await configs.read(["t"]) == {"t": defaults}
    await zk.create(path, config.encode({"retention.ms": "1000", "segment.bytes": "2000"}))
    assert config.decode(path, (await zk.get(path)).data) == {"retention.ms": "1000", "segment.bytes": "2000"}
    expected = topic_config(defaults, {"retention.ms": "1000", "segment.bytes": "2000"})
    assert await configs.read(["t", "u"]) == {"t": expected, "u": defaults}
    changed = {key for key, value in asdict(expected).items() if asdict(defaults)[key] != value}
    assert changed == {"retention_ms", "segment_bytes"}
    await zk.set(path, config.encode({"retention.ms": "500"}))
    assert (await configs.read(["t"]))["t"] == topic_config(defaults, {"retention.ms": "500"})
    await zk.create(config.topic_path("u"), config.encode({}))
    assert sorted(await zk.children(config.type_path(config.TOPICS))) == ["t", "u"]


# --- the controller's two nodes ---


@pytest.mark.case("ZKC-12")
async def test_the_controller_epoch(zk: ZooKeeperClient) -> None:
    path, zero, one = controller_epoch.PATH, b"0", controller_epoch.encode(ControllerEpoch(1))
    with pytest.raises(NoNode):
        await zk.set(path, one, 0)
    assert (await zk.create(path, zero))[0] == path
    with pytest.raises(NodeExists):
        await zk.create(path, zero)
    assert (await zk.set(path, one, 0)).version == 1
    with pytest.raises(BadVersion):
        await zk.set(path, one, 0)
    assert controller_epoch.decode(path, (await zk.get(path)).data) == 1


@pytest.mark.case("ZKC-13")
async def test_registered_as_controller(zk: ZooKeeperClient) -> None:
    await zk.create(controller_epoch.PATH, b"0")
    document = controller.encode(BrokerId(5), 1)
    _, written = await zk.multi(
        [Create(controller.PATH, document, CreateMode.EPHEMERAL), Set(controller_epoch.PATH, b"1", 0)]
    )
    assert isinstance(written, Stat)
    node = await zk.get(controller.PATH)
    assert controller.decode(controller.PATH, node.data) == 5
    assert node.stat.ephemeral_owner == zk.session_id
    with pytest.raises(BadVersion):
        await zk.write_many([Delete(controller.PATH)], Fence(controller_epoch.PATH, written.version - 1))
    assert await zk.exists(controller.PATH) is not None
    await zk.write_many([Delete(controller.PATH)], Fence(controller_epoch.PATH, written.version))
    assert await zk.exists(controller.PATH) is None


@pytest.mark.case("ZKC-18")
async def test_a_broker_that_starts_makes_sure_of_the_persistent_paths(
    zk: ZooKeeperClient, address: str, tmp_path: Path
) -> None:
    settings = {
        "broker.id": "1",
        "zookeeper.connect": address + zk._chroot.prefix,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(tmp_path / "logs"),
        "controlled.shutdown.enable": "false",
    }
    async with BrokerServer(read_broker_config(settings)[0], real_ports()).running():
        for path in (
            "/consumers",
            "/brokers/ids",
            "/brokers/topics",
            "/brokers/seqid",
            "/config/changes",
            *(f"/config/{kind}" for kind in ("topics", "clients", "users", "brokers")),
            "/admin/delete_topics",
            "/isr_change_notification",
            "/latest_producer_id_block",
            "/log_dir_event_notification",
        ):
            stat = await zk.exists(path)
            assert stat is not None and stat.ephemeral_owner == 0, path
