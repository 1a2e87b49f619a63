"""Conflicts of broker ids and addresses, on klamm's ZooKeeper server with real sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import ConfigError, NoNode
from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server import registration as server_registration
from klamm.server.registration import Registration
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.znodes import broker_id
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

Connect = Callable[[], Awaitable[ZooKeeperClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(1)
    clients: list[ZooKeeperClient] = []
    async with MemoryZooKeeper(network, clock, rng).running() as server:

        async def connected() -> ZooKeeperClient:
            client = ZooKeeperClient(network, clock, rng, f"127.0.0.1:{server.port}", 6_000)
            clients.append(client)
            await client.start()
            return client

        first = await connected()
        for path in PERSISTENT_PATHS:
            await first.ensure_path(path)
        yield connected
        for client in clients:
            await client.close()


def broker(number: int, port: int) -> Broker:
    return Broker(BrokerId(number), (Endpoint("PLAINTEXT", "h", port),))


def registration(zk: ZooKeeperClient, who: Broker) -> Registration:
    return Registration(zk, SystemClock(), who)


@pytest.mark.case("BEP-01")
async def test_the_epoch_is_the_zxid_of_the_creation(connect: Connect) -> None:
    zk = await connect()
    epoch = await registration(zk, broker(1, 9092)).first()
    assert epoch == (await zk.get("/brokers/ids/1")).stat.czxid


async def test_a_renewed_registration_names_the_first_one_after_the_recovery(connect: Connect) -> None:
    zk = await connect()
    mine = registration(zk, broker(1, 9092)._replace(recovered=True))

    async def told() -> object:
        return broker_id.decode("/brokers/ids/1", (await zk.get("/brokers/ids/1")).data).recovered

    first = await mine.first()
    assert await told() is True
    for _ in range(2):
        await zk.delete("/brokers/ids/1")
        assert await mine.again() > first
        assert await told() == first


@pytest.mark.case("BEP-04")
async def test_an_id_that_is_taken(connect: Connect) -> None:
    zk = await connect()
    await registration(zk, broker(1, 9092)).first()
    before = await zk.get("/brokers/ids/1")
    with pytest.raises(ConfigError, match=r"broker\.id=1 is registered by another broker at .*9092"):
        await registration(await connect(), broker(1, 9093)).first()
    assert await zk.get("/brokers/ids/1") == before


@pytest.mark.case("BEP-05")
async def test_a_registration_is_changed_only_where_there_is_one(connect: Connect) -> None:
    zk, stranger = await connect(), await connect()
    changed = broker_id.encode(broker(1, 9099), 0)
    with pytest.raises(NoNode):
        await stranger.set("/brokers/ids/1", changed)
    await registration(zk, broker(1, 9092)).first()
    await stranger.set("/brokers/ids/1", changed)
    assert broker_id.decode("/brokers/ids/1", (await zk.get("/brokers/ids/1")).data) == broker(1, 9099)


@pytest.mark.case("BEP-06")
async def test_an_address_that_is_taken(connect: Connect) -> None:
    await registration(await connect(), broker(1, 9092)).first()
    second = await connect()
    with pytest.raises(ConfigError, match=r"advertised\.listeners: h:9092 is registered by broker 1"):
        await registration(second, broker(2, 9092)).first()
    assert await second.exists("/brokers/ids/2") is None
    await registration(second, broker(2, 9093)).first()
    assert await second.exists("/brokers/ids/2") is not None


async def test_an_address_that_no_resolver_takes(connect: Connect) -> None:
    """Controllers would set such a registration aside."""
    me = Broker(BrokerId(1), (Endpoint("PLAINTEXT", "broker-7..svc", 9092),))
    with pytest.raises(ConfigError, match=r"advertised\.listeners: .*broker-7\.\.svc"):
        await registration(await connect(), me).first()


async def test_an_earlier_process_of_this_broker_is_waited_for(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_registration, "POLL", 0.01)
    former, zk = await connect(), await connect()
    await registration(former, broker(1, 9092)).first()
    mine = registration(zk, broker(1, 9092))
    waiting = asyncio.create_task(mine.first())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await former.delete("/brokers/ids/1")
    epoch = await asyncio.wait_for(waiting, 10)
    stat = (await zk.get("/brokers/ids/1")).stat
    assert (stat.czxid, stat.ephemeral_owner) == (epoch, zk.session_id)
    assert mine.session_id == zk.session_id


async def test_an_earlier_process_that_does_not_end(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_registration, "WAIT_BEYOND_SESSION", -10.0)
    former = await connect()
    await registration(former, broker(1, 9092)).first()
    before = await former.get("/brokers/ids/1")
    with pytest.raises(ConfigError, match="still registered"):
        await registration(await connect(), broker(1, 9092)).first()
    assert await former.get("/brokers/ids/1") == before


async def test_registrations_that_cannot_be_read(connect: Connect) -> None:
    zk = await connect()
    for name in ("1", "2"):
        await zk.create(f"/brokers/ids/{name}", b"garbled")
    with pytest.raises(ConfigError, match=r"broker\.id=1 has an unreadable registration"):
        await registration(zk, broker(1, 9092)).first()
    await registration(zk, broker(3, 9093)).first()  # the controller reports the others


async def test_a_broker_keeps_its_own_address(connect: Connect) -> None:
    zk = await connect()
    mine = registration(zk, broker(1, 9092))
    first = await mine.first()
    assert await mine.first() == first, "its own registration is no other broker's"
