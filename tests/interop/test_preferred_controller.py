"""A klamm candidate among Apache Kafka brokers stays controller although they neither hold back nor hand over."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from random import Random
from typing import Any

from klamm.model.errors import NoNode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

VERSION = "2.5.1"
JVM = (1, 2)
KLAMM = 3


class Watched:
    def __init__(self, zk: ZooKeeperClient, cluster: MixedCluster) -> None:
        self.zk, self.cluster = zk, cluster

    async def controller(self) -> tuple[int | None, int]:
        """The controller, and the zxid of its election."""
        try:
            node = await self.zk.get("/controller")
        except NoNode:
            return None, 0
        return int(json.loads(node.data or b"{}")["brokerid"]), node.stat.czxid

    async def wait_for_controller(self, *brokers: int) -> None:
        async def led() -> bool:
            return (await self.controller())[0] in brokers

        await eventually(f"a controller among {brokers}", led)

    async def create_topic(self, topic: str) -> None:
        """Create a topic with Kafka's own tool, which asks the current controller; wait until JVM brokers know it."""
        arguments = ("--create", "--topic", topic, "--partitions", "4", "--replication-factor", "2")
        bootstrap = ",".join(self.cluster[broker].address for broker in JVM)
        await run_tool(VERSION, "kafka.admin.TopicCommand", "--bootstrap-server", bootstrap, *arguments)

        async def led() -> bool:
            return all(state.get("leader", -1) in JVM for state in await self.states(topic))

        await eventually(f"leaders of {topic}", led)

    async def states(self, topic: str) -> list[dict[str, Any]]:
        paths = [f"/brokers/topics/{topic}/partitions/{number}/state" for number in range(4)]
        return [json.loads(node.data) if node and node.data else {} for node in await self.zk.get_many(paths)]

    async def epoch(self) -> int:
        return int((await self.zk.get("/controller_epoch")).data or b"0")


async def test_a_klamm_candidate_holds_the_office(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    connect = zookeeper.connect_string
    dedicated = {"inter.broker.protocol.version": "2.5", "klamm.controller.only": "true"}
    brokers = [ApacheKafkaBroker(VERSION, number, connect, tmp_path / str(number)) for number in JVM]
    klamm = KlammBroker(KLAMM, connect, tmp_path / str(KLAMM), dedicated)
    cluster = MixedCluster([*brokers, klamm])
    client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), connect, 30_000)
    try:
        async with client.running():
            them = Watched(client, cluster)
            await client.ensure_path(f"/config/extension/candidates/{KLAMM}")
            async with asyncio.TaskGroup() as tasks:
                for broker in brokers:
                    tasks.create_task(broker.start())
            await them.wait_for_controller(*JVM)

            # The candidate starts while a JVM broker is controller, and takes over after the settle time.
            started = time.monotonic()
            await klamm.start()
            await them.wait_for_controller(KLAMM)
            took = time.monotonic() - started
            await them.create_topic("under-klamm")
            registration = json.loads((await client.get(f"/brokers/ids/{KLAMM}")).data or b"")
            assert registration["klamm"] == {"controller_only": True}
            (_, since), epoch = await them.controller(), await them.epoch()

            # A JVM broker dies and returns; the candidate stays controller.
            await cluster[1].kill()

            async def shrunk() -> bool:
                return all(state["isr"] == [2] for state in await them.states("under-klamm"))

            await eventually("ISR of broker 2 alone", shrunk)
            await cluster[1].start()
            assert await them.controller() == (KLAMM, since)

            # The candidate dies: a JVM broker is elected, and a topic is created under it.
            await klamm.kill()
            await them.wait_for_controller(*JVM)
            await them.create_topic("under-kafka")
            assert await them.epoch() == epoch + 1

            # The candidate returns and takes over.
            await klamm.start()
            await them.wait_for_controller(KLAMM)
            await them.create_topic("under-klamm-again")
            assert await them.epoch() == epoch + 2
            for topic in ("under-klamm", "under-kafka", "under-klamm-again"):
                assert all(state["leader"] in JVM for state in await them.states(topic))

            # No broker is a candidate any more, and a JVM broker is controller. An edit of /controller makes it resign;
            # the broker that is named believes it is the controller but does not act, and klamm repairs it.
            await client.delete(f"/config/extension/candidates/{KLAMM}")
            await klamm.kill()
            await them.wait_for_controller(*JVM)
            await klamm.start()
            leading, _ = await them.controller()
            named = next(broker for broker in JVM if broker != leading)
            await client.set("/controller", b'{"version":1,"brokerid":%d,"timestamp":"0"}' % named)
            await them.wait_for_controller(KLAMM)
            await them.create_topic("under-who-healed-it")
            assert await them.epoch() == epoch + 4
            assert "controller-healed" in klamm.log_text()
            print(f"start to take-over {took:.1f} s, epoch {await them.epoch()}")
            assert "controller-failed" not in klamm.log_text()
    finally:
        await cluster.kill()
        for broker in cluster.brokers.values():
            broker.release_ports()
