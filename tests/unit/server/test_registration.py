"""Conflicts of broker ids and addresses, on klamm's ZooKeeper server with real sessions."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import ConfigError, NoNode
from klamm.model.ids import BrokerId
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
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
