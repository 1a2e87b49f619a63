"""The ZooKeeper client on our server and on real ones: connections, sessions and watches across them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.model.errors import (
    BadVersion,
    ConnectionLoss,
    InvalidAcl,
    NoAuth,
    SessionExpired,
)
from klamm.model.ports import (
    Acl,
    Create,
    CreateMode,
    Delete,
    Fence,
    Set,
    Stat,
    WatchEvent,
    WatchKind,
)
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import SessionState, ZooKeeperClient
from klamm.zookeeper.client.connection import PendingRequest, ZooKeeperConnection
from klamm.zookeeper.jute import ConnectRequest, OpCode
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, available

pytestmark = pytest.mark.asyncio(loop_scope="session")

Connect = Callable[..., Any]


def client_of(address: str) -> ZooKeeperClient:
    return ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(7), address, 6000)


async def expire(address: str, client: ZooKeeperClient) -> None:
    """End the client's session from outside: a second connection of the same session closes it.

    The close request leaves in one write with the handshake, and is repeated if necessary: this connection ends the
    client's, and the client reconnects at once and may end this one in turn.
    """
    session_id, password = client.session_id, client.session_password
    host, _, port = address.partition(",")[0].partition(":")
    while client.session_id == session_id:
        connection = ZooKeeperConnection(SystemClock(), lambda _: None)
        await AsyncioNetwork().connect(lambda connection=connection: connection, host, int(port))
        resumed = asyncio.create_task(connection.handshake(ConnectRequest(0, 6000, session_id, password)))
        await asyncio.sleep(0)
        connection.send(PendingRequest(OpCode.CLOSE_SESSION, b"", ""))
        await asyncio.gather(resumed, asyncio.shield(connection.closed), return_exceptions=True)
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


# --- single operations ---


async def test_the_chroot_is_invisible_inside(zk: ZooKeeperClient, address: str) -> None:
    await zk.create("/inside", b"x")
    async with client_of(address).running() as outside:
        (root,) = [r for r in await outside.children("/") if f"/{r}" == zk._chroot.prefix]
        assert (await outside.get(f"/{root}/inside")).data == b"x"
    assert await zk.children("/") == ["inside"]


async def test_a_closed_client(connect: Connect) -> None:
    other = await connect()
    await other.close()
    assert other.state is SessionState.CLOSED
    with pytest.raises(SessionExpired, match="closed"):
        await other.get("/e")


async def test_acls_and_identity(zk: ZooKeeperClient, connect: Connect) -> None:
    owner = await connect(credentials=[("digest", b"kafka:secret")])
    await owner.create("/secret", b"x", acl=(Acl(31, "auth", ""),))
    acl, _ = await owner.get_acl("/secret")
    assert [(entry.perms, entry.scheme) for entry in acl] == [(31, "digest")]
    with pytest.raises(NoAuth):
        await zk.get("/secret")
    with pytest.raises(NoAuth, match="/secret"):
        await zk.get_many(["/", "/secret"])
    owner.drop_connection()
    await asyncio.sleep(0)
    assert (await owner.get("/secret")).data == b"x"  # each new connection authenticates again
    await zk.add_auth("digest", b"kafka:secret")
    assert (await zk.get("/secret")).data == b"x"
    stat = await zk.set_acl("/secret", [Acl(1, "world", "anyone")], 0)
    assert stat.aversion == 1
    with pytest.raises(InvalidAcl):
        await zk.set_acl("/secret", [])


# --- bulk ---


@pytest.mark.parametrize("address", ["real 3.5.8"], indirect=True)
async def test_bulk_on_a_server_without_multi_read(address: str, connect: Connect) -> None:
    """The probe ends the first connection but not the session. Bulk reads then use pipelined single reads."""
    zk: ZooKeeperClient = await connect()
    other: ZooKeeperClient = await connect()
    assert (zk.requests["multi_read"], zk.expirations) == (1, 0)
    await zk.create("/fence", b"")
    paths = [f"/{i:04d}" for i in range(1200)]
    fence = Fence("/fence", 0)
    assert await zk.write_many([Create(path, b"0") for path in paths], fence) == paths
    written = await zk.write_many([Set(path, b"1", 0) for path in paths], fence)
    assert [result.version for result in written if isinstance(result, Stat)] == [1] * len(paths)
    nodes = await zk.get_many([*paths, "/missing"])
    assert [node and node.data for node in nodes] == [b"1"] * len(paths) + [None]
    log = Log()
    await zk.get_many_and_watch([*paths, "/missing"], log)
    zk.drop_connection()
    await other.write_many([Set(path, b"2") for path in paths[:600]])
    await other.create("/missing")
    await zk.sync("/")
    assert sorted(log.events) == [("CREATED", "/missing"), *(("DATA_CHANGED", path) for path in paths[:600])]
    assert await zk.write_many([Delete(path) for path in paths], fence) == [None] * len(paths)
    left, gone = await zk.children_many(["/", "/0000"])
    assert (sorted(left or ()), gone) == (["fence", "missing"], None)
    await zk.set("/fence", b"")
    with pytest.raises(BadVersion, match="/fence"):
        await zk.write_many([Delete("/missing")], fence)
    assert zk.requests["multi_read"] == 1


# --- watches ---


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def __call__(self, event: WatchEvent) -> None:
        self.events.append((event.kind.name, event.path))


async def test_watches_survive_a_lost_connection_and_report_what_happened_meanwhile(
    zk: ZooKeeperClient, connect: Connect
) -> None:
    other, log = await connect(), Log()
    for name in ("changed", "deleted", "same", "recreated"):
        await zk.create(f"/{name}", b"")
        await zk.get(f"/{name}", log)
    await zk.exists("/created", log)
    await zk.exists("/still missing", log)
    await zk.children("/", log)
    zk.drop_connection()
    # Sent before the client can have reconnected, and in one transaction, so that it never finds a part of the changes.
    await other.multi(
        [Set("/changed", b"1"), Delete("/deleted"), Delete("/recreated"), Create("/created"), Create("/recreated")]
    )
    await zk.get("/same")
    assert sorted(log.events) == [
        ("CHILDREN_CHANGED", "/"),
        ("CREATED", "/created"),
        ("DATA_CHANGED", "/changed"),
        ("DATA_CHANGED", "/recreated"),
        ("DELETED", "/deleted"),
    ]
    await other.multi([Set("/same", b"1"), Create("/still missing")])
    await zk.sync("/")
    assert sorted(log.events[5:]) == [("CREATED", "/still missing"), ("DATA_CHANGED", "/same")]
    assert zk.disconnections == 1
    assert zk.expirations == 0


async def test_fifty_thousand_watches_fire_once_each(zk: ZooKeeperClient, scaled: Callable[[int, int], int]) -> None:
    count = scaled(5_000, 50_000)
    paths = [f"/{i}" for i in range(count)]
    await zk.write_many([Create(path, b"") for path in paths[: count - 10]])
    log = Log()
    nodes = await zk.get_many_and_watch(paths, log)
    assert nodes.count(None) == 10
    assert (log.events, zk.watch_count) == ([], count)
    zk.drop_connection()
    await asyncio.sleep(0)
    await zk.sync("/")
    assert (log.events, zk.watch_count) == ([], count)  # set again, and nothing fires needlessly
    await zk.write_many([Set(path, b"x") for path in paths[:-10]])
    await zk.write_many([Create(path, b"x") for path in paths[-10:]])
    await zk.sync("/")
    assert log.events == [("DATA_CHANGED", path) for path in paths[:-10]] + [("CREATED", path) for path in paths[-10:]]
    assert zk.watch_count == 0


class Mirror:
    """Knows the versions of many nodes only by watches, as the controller does."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self.versions: dict[str, int] = {}
        self.dirty: set[str] = set()
        self.wake = asyncio.Event()

    def on_event(self, event: WatchEvent) -> None:
        assert event.kind is WatchKind.DATA_CHANGED
        self.dirty.add(event.path)
        self.wake.set()

    async def follow(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            await self.read(sorted(self.dirty))

    async def read(self, paths: list[str]) -> None:
        self.dirty -= set(paths)
        try:
            nodes = await self.client.get_many_and_watch(paths, self.on_event)
        except ConnectionLoss:
            self.dirty |= set(paths)
            self.wake.set()
            return
        for path, node in zip(paths, nodes, strict=True):
            assert node is not None
            # Reads overlap, and the first to start may be the last to end.
            self.versions[path] = max(node.stat.version, self.versions.get(path, 0))


async def test_no_change_is_missed_while_connections_die(
    zk: ZooKeeperClient, connect: Connect, scaled: Callable[[int, int], int]
) -> None:
    writer: ZooKeeperClient = await connect()
    random = Random(3)
    paths = [f"/{i:04d}" for i in range(1000)]
    await writer.write_many([Create(path, b"") for path in paths])
    written = dict.fromkeys(paths, 0)
    mirror = Mirror(zk)
    await mirror.read(paths)
    following = asyncio.create_task(mirror.follow())
    writing = True

    async def write() -> None:
        while writing:
            chosen = random.sample(paths, 50)
            for path, result in zip(chosen, await writer.write_many([Set(p, b"x") for p in chosen]), strict=True):
                assert isinstance(result, Stat)
                written[path] = result.version
            await asyncio.sleep(random.uniform(0, 0.003))

    task = asyncio.create_task(write())
    kills = scaled(10, 50)
    for _ in range(kills):
        await asyncio.sleep(random.uniform(0.005, 0.05))
        await until(lambda: zk.state is SessionState.CONNECTED)
        zk.drop_connection()
    writing = False
    await task
    await until(lambda: zk.disconnections >= kills)
    await until(lambda: mirror.versions == written)
    following.cancel()


async def test_no_change_between_the_batches_of_one_read_is_missed(
    zk: ZooKeeperClient, connect: Connect, scaled: Callable[[int, int], int]
) -> None:
    """Each batch is watched from its own zxid on. With a later zxid this fails within a few rounds."""
    writer: ZooKeeperClient = await connect()
    random = Random(4)
    paths = [f"/{i:04d}" for i in range(3000)]
    await writer.write_many([Create(path, b"") for path in paths])
    for _ in range(scaled(3, 60 if zk._session.has_multi_read else 10)):
        mirror = Mirror(zk)
        following = asyncio.create_task(mirror.follow())
        reading = asyncio.create_task(mirror.read(paths))
        while not reading.done():
            await asyncio.gather(*(writer.set(path, b"x") for path in random.sample(paths, 30)))
        await reading
        nodes = await writer.get_many(paths)
        written = {path: node.stat.version for path, node in zip(paths, nodes, strict=True) if node is not None}
        await until(lambda mirror=mirror, written=written: mirror.versions == written)
        following.cancel()


# --- sessions ---


class Owner:
    """A session listener that records its calls and what the client could do at that moment."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self.seen: list[str] = []

    async def before_new_session(self) -> None:
        try:
            await self.client.get("/")
        except SessionExpired:
            self.seen.append("before: refused")

    async def after_new_session(self) -> None:
        await self.client.create("/owned", b"", CreateMode.EPHEMERAL)
        self.seen.append("after: created")

    async def on_auth_failure(self) -> None:
        raise AssertionError


@pytest.mark.timeout(900)
@pytest.mark.parametrize("address", ["ours", "real", "real 3.5.8", "ensemble"], indirect=True)
async def test_forced_expiries(
    zk: ZooKeeperClient, connect: Connect, address: str, scaled: Callable[[int, int], int]
) -> None:
    client: ZooKeeperClient = await connect()
    await client.create("/owned", b"", CreateMode.EPHEMERAL)
    owner = Owner(client)
    client.add_session_listener(owner)
    for round_ in range(1, scaled(5, 100) + 1):
        before = client.session_id
        await client.get("/owned", lambda _: None)
        await expire(address, client)
        await until(lambda round_=round_: len(owner.seen) == 2 * round_)
        assert owner.seen[-2:] == ["before: refused", "after: created"]
        assert client.session_id != before
        assert client.watch_count == 0
        await zk.sync("/owned")  # in an ensemble each client may be on another server
        stat = await zk.exists("/owned")
        assert stat is not None
        assert stat.ephemeral_owner == client.session_id
        assert client.expirations == round_


@pytest.mark.parametrize("address", ["real"], indirect=True)  # unit tests do this in virtual time on ours
async def test_an_idle_session_lives_by_pings(address: str) -> None:
    client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), address, 4000)
    async with client.running():
        session = client.session_id
        await asyncio.sleep(6)
        await client.get("/")
        assert (client.session_id, client.disconnections, client.expirations) == (session, 0, 0)


# --- registration of a broker ---


# --- the real server dies ---


@asynccontextmanager
async def real_server(directory: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    if why := available():
        pytest.fail(why)  # without the real server this test proves nothing
    async with EmbeddedZooKeeper(directory).running() as server:
        yield server


@pytest.mark.asyncio(loop_scope="function")
async def test_session_ephemerals_and_watches_outlive_a_killed_server(tmp_path: Path) -> None:
    async with (
        real_server(tmp_path) as server,
        ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(7), server.connect_string, 40_000).running() as client,
    ):
        session, log = client.session_id, Log()
        await client.create("/e", b"", CreateMode.EPHEMERAL)
        await client.create("/w", b"")
        await client.get("/w", log)
        await server.kill()
        waiting = asyncio.create_task(client.get("/e"))
        await asyncio.sleep(0.1)
        assert not waiting.done() or isinstance(waiting.exception(), ConnectionLoss)
        await server.restart()
        node = await client.get("/e")
        assert node.stat.ephemeral_owner == session == client.session_id
        await client.set("/w", b"1")
        assert log.events == [("DATA_CHANGED", "/w")]
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.asyncio(loop_scope="function")
async def test_a_server_that_lost_its_data_ends_the_session_instead_of_refusing_it_for_ever(tmp_path: Path) -> None:
    async with real_server(tmp_path / "first") as first:
        client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), first.connect_string, 4000)
        await client.start()
        for i in range(20):
            await client.ensure_path(f"/{i}")
        await first.kill()
        async with EmbeddedZooKeeper(tmp_path / "second", port=first.port).running():
            await until(lambda: client.expirations == 1 and client.state is SessionState.CONNECTED)
            assert await client.children("/") == ["zookeeper"]
            await client.close()
