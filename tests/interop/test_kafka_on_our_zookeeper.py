"""Apache Kafka's brokers on klamm's ZooKeeper server: they register, elect a controller, create a topic, lose a broker.

Kafka's own ZooKeeper client and controller do all of it; only the server is klamm's.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.model.errors import NoNode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.journal import FileJournal
from klamm.zookeeper.server.memory import MemoryZooKeeper

TOPIC = "on-ours"
PARTITIONS = 4
ASSIGNMENT = "1:2,2:1,1:2,2:1"


async def states(zk: ZooKeeperClient) -> list[dict[str, Any]]:
    paths = [f"/brokers/topics/{TOPIC}/partitions/{number}/state" for number in range(PARTITIONS)]
    return [json.loads(node.data) if node is not None and node.data else {} for node in await zk.get_many(paths)]


async def controller(zk: ZooKeeperClient) -> int | None:
    try:
        return int(json.loads((await zk.get("/controller")).data or b"{}")["brokerid"])
    except NoNode:
        return None


async def topic_life_on(version: str, path: Path) -> None:
    """The controller of two brokers is killed; the other takes over as controller and leader; the first returns."""
    ours = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), Random(1), journal=FileJournal(path / "zookeeper"))
    async with ours.running():
        zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), ours.address, 10_000)
        brokers = [ApacheKafkaBroker(version, number, ours.address, path / str(number)) for number in (1, 2)]
        async with zk.running(), MixedCluster(brokers).running() as cluster:

            async def led_by(leaders: list[int], isr: list[int]) -> bool:
                return [(state.get("leader"), sorted(state.get("isr", []))) for state in await states(zk)] == [
                    (leader, isr) for leader in leaders
                ]

            await run_tool(
                version,
                "kafka.admin.TopicCommand" if version == "2.5.1" else "org.apache.kafka.tools.TopicCommand",
                *("--bootstrap-server", cluster.bootstrap, "--create", "--topic", TOPIC),
                *("--replica-assignment", ASSIGNMENT),
            )
            await eventually("the topic's leaders", lambda: led_by([1, 2, 1, 2], [1, 2]))
            killed = await controller(zk)
            assert killed is not None
            other = 3 - killed
            await cluster[killed].kill()

            async def moved() -> bool:
                return await controller(zk) == other and await led_by([other] * PARTITIONS, [other])

            await eventually("the other broker as controller and leader", moved)
            assert await zk.children("/brokers/ids") == [str(other)]
            await cluster[killed].start()
            await eventually("the killed broker back in sync", lambda: led_by([other] * PARTITIONS, [1, 2]))


@pytest.mark.parametrize("version", ["2.5.1", "3.9.1"])
async def test_apache_kafka_lives_on_our_server(version: str, tmp_path: Path) -> None:
    await topic_life_on(version, tmp_path)
