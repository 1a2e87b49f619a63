"""ZooKeeper clients, each test below its own chroot: on our server, on the real one, and on a real 3.5.8, which has no
multi-read (it comes with Apache Kafka 2.5.1). A test can ask by `indirect` for an ensemble, or for sessions in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.testing.kafka_jars import kafka_jars
from klamm.testing.zookeeper import InMemoryTree, InMemoryZooKeeper
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, available
from klamm.zookeeper.server.embedded_ensemble import EmbeddedEnsemble
from klamm.zookeeper.server.memory import MemoryZooKeeper

SESSION_TIMEOUT_MS = 6000
Connect = Callable[..., Any]
IN_MEMORY = "in memory"
roots = (f"/test-{n}" for n in itertools.count())


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["ours", "real", "real 3.5.8"])
async def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    if request.param == IN_MEMORY:
        yield IN_MEMORY
        return
    if request.param == "ours":
        async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1)).running() as ours:
            yield ours.address
        return
    if why := available():
        pytest.fail(why)  # without the real server these tests prove nothing
    if request.param == "ensemble":
        async with EmbeddedEnsemble(tmp_path_factory.mktemp("ensemble"), force_sync=False).running() as ensemble:
            yield ensemble.connect_string
        return
    jars = kafka_jars("2.5.1") if request.param == "real 3.5.8" else None
    async with EmbeddedZooKeeper(tmp_path_factory.mktemp("zk"), force_sync=False, jars=jars).running() as real:
        yield real.connect_string


@pytest_asyncio.fixture(loop_scope="session")
async def connect(address: str) -> AsyncIterator[Connect]:
    """Opens clients below the test's chroot and closes them at its end."""
    root = next(roots)
    tree, session_ids = InMemoryTree(), itertools.count(1)
    async with AsyncExitStack() as stack:

        async def connect(**options: Any) -> Any:
            if address == IN_MEMORY:
                return InMemoryZooKeeper(tree, next(session_ids), chroot=root)
            client = ZooKeeperClient(
                AsyncioNetwork(), SystemClock(), Random(7), address + root, SESSION_TIMEOUT_MS, **options
            )
            return await stack.enter_async_context(client.running())

        await (await connect()).ensure_path("/")
        yield connect


@pytest_asyncio.fixture(loop_scope="session")
async def zk(connect: Connect) -> Any:
    return await connect()
