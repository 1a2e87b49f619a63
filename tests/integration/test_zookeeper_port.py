"""What the ZooKeeper port promises, on every implementation: our client on our server and on real ones, and the
sessions in memory that unit tests use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import (
    BadVersion,
    NodeExists,
    NoNode,
    NotEmpty,
    RuntimeInconsistency,
    SessionExpired,
    ZooKeeperError,
)
from klamm.model.ids import BrokerId
from klamm.model.ports import Check, Create, CreateMode, Delete, Fence, Set, Stat, WatchEvent, ZooKeeper
from klamm.zookeeper.znodes import broker_id
from klamm.zookeeper.znodes.registration import register

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("address", ["in memory", "ours", "real", "real 3.5.8"], indirect=True, scope="session"),
]

Connect = Callable[..., Any]
BROKER = Broker(BrokerId(1), (Endpoint("PLAINTEXT", "127.0.0.1", 9092),))


# --- single operations ---


async def test_a_nodes_life(zk: ZooKeeper) -> None:
    path, created = await zk.create("/a", b"one")
    assert (path, created.version, created.ephemeral_owner) == ("/a", 0, 0)
    assert (await zk.set("/a", b"two", 0)).version == 1
    with pytest.raises(BadVersion, match="/a"):
        await zk.set("/a", b"three", 0)
    data, stat = await zk.get("/a")
    assert (data, stat.version, stat.czxid) == (b"two", 1, created.czxid)
    assert await zk.exists("/a") == stat
    await zk.create("/a/b")
    assert await zk.children("/a") == ["b"]
    with pytest.raises(NotEmpty):
        await zk.delete("/a")
    await zk.delete("/a/b")
    await zk.sync("/a")
    await zk.delete("/a", 1)
    assert await zk.exists("/a") is None
    for missing in (zk.get("/a"), zk.children("/a"), zk.set("/a", b""), zk.delete("/a"), zk.create("/a/b")):
        with pytest.raises(NoNode):
            await missing


async def test_null_and_empty_data_stay_different(zk: ZooKeeper) -> None:
    await zk.create("/null", None)
    await zk.create("/empty", b"")
    assert [node and node.data for node in await zk.get_many(["/null", "/empty"])] == [None, b""]
    assert ((await zk.get("/null")).data, (await zk.get("/empty")).data) == (None, b"")


async def test_ensure_path(zk: ZooKeeper) -> None:
    await zk.ensure_path("/x/y/z")
    await zk.ensure_path("/x/y/z")
    assert (await zk.get("/x/y")).data is None


async def test_sequential_names_also_below_the_chroot_itself(zk: ZooKeeper) -> None:
    assert (await zk.create("/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL))[0] == "/n-0000000000"
    assert (await zk.create("/", mode=CreateMode.EPHEMERAL_SEQUENTIAL))[0] == "/0000000001"
    (third,) = await zk.multi([Create("/q-", mode=CreateMode.PERSISTENT_SEQUENTIAL)])
    assert third == "/q-0000000002"


async def test_multi_is_all_or_nothing(zk: ZooKeeper) -> None:
    results = await zk.multi([Create("/m", b"0"), Set("/m", b"1", 0), Check("/m", 1), Create("/m/c"), Delete("/m/c")])
    assert [type(result) for result in results] == [str, Stat, type(None), str, type(None)]
    failed = await zk.multi([Set("/m", b"2", 1), Check("/m", 1), Delete("/m")])
    assert [type(result) for result in failed] == [RuntimeInconsistency, BadVersion, RuntimeInconsistency]
    assert (await zk.get("/m")).data == b"1"


async def test_ephemerals_are_gone_when_close_returns(zk: ZooKeeper, connect: Connect) -> None:
    other = await connect()
    await other.create("/e", b"", CreateMode.EPHEMERAL)
    stat = await zk.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == other.session_id
    await other.close()
    assert await zk.exists("/e") is None
    with pytest.raises(SessionExpired):
        await other.get("/e")


# --- bulk ---


@pytest.mark.case("ZKC-15")
async def test_bulk_in_the_order_of_the_arguments(zk: ZooKeeper) -> None:
    await zk.create("/fence", b"")
    paths = [f"/{i:04d}" for i in range(1700)]
    created = await zk.write_many([Create(path, path.encode()) for path in paths], Fence("/fence", 0))
    assert created == paths
    wanted = [path for path in reversed(paths) for path in (path, path + "-missing")]
    nodes = await zk.get_many(wanted)
    assert [node.data.decode() if node and node.data else None for node in nodes[0::2]] == list(reversed(paths))
    assert set(nodes[1::2]) == {None}
    listings = await zk.children_many(["/", "/0000", "/nowhere"])
    assert sorted(listings[0] or ()) == [*(path[1:] for path in paths), "fence"]
    assert listings[1:] == [[], None]


async def test_a_held_fence_stops_everything(zk: ZooKeeper) -> None:
    await zk.create("/fence", b"")
    await zk.set("/fence", b"successor")
    with pytest.raises(BadVersion) as caught:
        await zk.write_many([Create(f"/{i}") for i in range(5000)], Fence("/fence", 0))
    assert caught.value.path == "/fence"
    assert await zk.children("/") == ["fence"]
    with pytest.raises(NoNode):
        await zk.write_many([Create("/x")], Fence("/no fence", 0))


async def test_a_conflict_fails_its_own_multi_only(zk: ZooKeeper) -> None:
    await zk.create("/fence", b"")
    await zk.write_many([Create(f"/{i:04d}") for i in range(3000)])
    await zk.set("/1700", b"changed by another client")
    results = await zk.write_many([Set(f"/{i:04d}", b"x", 0) for i in range(3000)], Fence("/fence", 0))
    failed = [i for i, result in enumerate(results) if isinstance(result, ZooKeeperError)]
    assert failed == list(range(1000, 2000))
    assert [i for i in failed if isinstance(results[i], BadVersion)] == [1700]


# --- watches ---


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, event: WatchEvent) -> None:
        self.events.append((event.kind.name, event.path))


@pytest.mark.case("ZKC-14")
async def test_each_kind_of_watch(zk: ZooKeeper, connect: Connect) -> None:
    other, log = await connect(), Log()
    assert await zk.exists("/w", log) is None
    await other.create("/w", b"")
    await zk.sync("/")
    assert log.events == [("CREATED", "/w")]
    await zk.get("/w", log)
    await zk.get("/w", log)  # set twice, fired once
    await zk.children("/w", log)
    await other.set("/w", b"1")
    await other.create("/w/c")
    await zk.sync("/")
    assert log.events[1:] == [("DATA_CHANGED", "/w"), ("CHILDREN_CHANGED", "/w")]
    await zk.get("/w/c", log)
    await zk.children("/w/c", log)
    await other.delete("/w/c")
    await zk.sync("/")
    assert log.events[3:] == [("DELETED", "/w/c")]


# --- the broker's registration ---


async def test_registration(zk: ZooKeeper, connect: Connect) -> None:
    await zk.ensure_path("/brokers/ids")
    document = broker_id.encode(BROKER, 1)
    epoch = await register(zk, BROKER.id, document)
    node = await zk.get("/brokers/ids/1")
    assert (node.data, node.stat.version, node.stat.czxid) == (document, 1, epoch)
    assert await register(zk, BROKER.id, document) == epoch  # the session owns it already: that is its registration

    other = await connect()
    with pytest.raises(NodeExists, match=f"0x{zk.session_id:x}"):
        await register(other, BROKER.id, document)
    later = await register(other, BROKER.id, document, previous_session_id=zk.session_id)
    assert later > epoch
    stat = await zk.exists("/brokers/ids/1")
    assert stat is not None
    assert (stat.ephemeral_owner, stat.version) == (other.session_id, 1)


async def test_registration_without_its_parent_fails(zk: ZooKeeper) -> None:
    with pytest.raises(NoNode):
        await register(zk, BROKER.id, b"{}")
