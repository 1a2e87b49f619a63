"""Transactions in a cluster of one Apache Kafka 2.5.1 broker and one klamm broker: either coordinates, either leads.

Broker 1 is Kafka, broker 2 is klamm. Each is the preferred leader of one partition of the topic, so a coordinator of
either kind writes markers to leaders of both kinds. Each takes over `__transaction_state` from the other in the middle
of a transaction.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, run_tool
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

VERSION = "2.5.1"
JVM, KLAMM = 1, 2
TOPIC, STATE = "mixed", "__transaction_state"
SETTINGS: dict[str, str | int] = {
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": 5000,
    "inter.broker.protocol.version": "2.5",
}


class Mixed:
    def __init__(self, cluster: MixedCluster, zk: ZooKeeperClient) -> None:
        self.cluster = cluster
        self.zk = zk
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    async def state(self, topic: str, partition: int) -> dict[str, object]:
        [node] = await self.zk.get_many([f"/brokers/topics/{topic}/partitions/{partition}/state"])
        return json.loads(node.data) if node is not None and node.data else {}

    async def coordinator(self) -> int:
        return int(str((await self.state(STATE, 0))["leader"]))

    async def wait_in_sync(self) -> None:
        async def in_sync() -> bool:
            states = [await self.state(TOPIC, 0), await self.state(TOPIC, 1), await self.state(STATE, 0)]
            return all(len(state.get("isr", ())) == 2 for state in states)  # type: ignore[arg-type]

        await eventually("full ISRs", in_sync)

    async def spread_leaders(self) -> None:
        """Each broker leads its own partition of the topic again; the coordinator stays where it is."""
        wanted = {"version": 1, "partitions": [{"topic": TOPIC, "partition": partition} for partition in (0, 1)]}
        await self.zk.create("/admin/preferred_replica_election", json.dumps(wanted).encode())

        async def spread() -> bool:
            return [(await self.state(TOPIC, partition))["leader"] for partition in (0, 1)] == [JVM, KLAMM]

        await eventually("a leader of either kind", spread)

    async def take_over(self) -> None:
        """The coordinator stops and comes back as a follower."""
        before = await self.coordinator()
        await self.cluster[before].stop()
        assert await self.coordinator() != before

    async def restore(self) -> None:
        for broker in self.cluster.brokers.values():
            if not broker.alive:
                await broker.start()
        await self.wait_in_sync()


def send(client: Producer, value: str) -> None:
    for partition in (0, 1):
        client.produce(TOPIC, value.encode(), partition=partition)
    assert client.flush(60) == 0


def transact(client: Producer, value: str, *, commit: bool = True) -> None:
    client.begin_transaction()
    send(client, value)
    (client.commit_transaction if commit else client.abort_transaction)(60)


def visible(bootstrap: str, isolation: str) -> list[list[str]]:
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        for partition in (0, 1):
            client.assign([TopicPartition(TOPIC, partition, 0)])
            values = []
            while (message := client.poll(30)) is not None and not message.error():
                values.append(message.value().decode())
            found.append(values)
    finally:
        client.close()
    return found


async def dump(broker: BrokerProcess) -> list[str]:
    """What Kafka's own decoder reads in the coordinator's log."""
    [segment] = (broker.data_directory / f"{STATE}-0").glob("*.log")
    result = await run_tool(
        VERSION, "kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", str(segment)
    )
    return [line for line in result.output.splitlines() if "payload" in line or "isvalid" in line]


async def test_either_kind_coordinates_and_takes_over(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    connect = zookeeper.connect_string
    brokers: list[BrokerProcess] = [
        ApacheKafkaBroker(VERSION, JVM, connect, tmp_path / "1", properties=SETTINGS),
        KlammBroker(KLAMM, connect, tmp_path / "2", SETTINGS),
    ]
    zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), connect, 30_000)
    async with MixedCluster(brokers).running() as cluster, zk.running():
        them = Mixed(cluster, zk)
        topic = NewTopic(TOPIC, num_partitions=2, replica_assignment=[[JVM, KLAMM], [KLAMM, JVM]])
        await asyncio.to_thread(them.admin.create_topics([topic])[TOPIC].result, 30)
        client = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": "mixed", "transaction.timeout.ms": 60_000}
        )
        await asyncio.to_thread(client.init_transactions, 60)
        await them.wait_in_sync()
        expected = []
        first = await them.coordinator()
        for coordinator in (first, JVM + KLAMM - first):
            assert await them.coordinator() == coordinator
            await them.spread_leaders()
            await asyncio.to_thread(transact, client, f"committed by {coordinator}")
            await asyncio.to_thread(transact, client, f"aborted by {coordinator}", commit=False)
            client.begin_transaction()
            await asyncio.to_thread(send, client, f"begun at {coordinator}")
            await them.take_over()
            await asyncio.to_thread(client.commit_transaction, 60)
            await them.restore()
            expected += [f"committed by {coordinator}", f"begun at {coordinator}"]

        async def all_visible() -> bool:
            return await asyncio.to_thread(visible, cluster.bootstrap, "read_committed") == [expected, expected]

        await eventually("the committed records", all_visible)
        everything = await asyncio.to_thread(visible, cluster.bootstrap, "read_uncommitted")
        assert [len(values) for values in everything] == [6, 6]

        async def equal_logs() -> bool:
            paths = [next((broker.data_directory / f"{STATE}-0").glob("*.log")) for broker in brokers]
            return paths[0].read_bytes() == paths[1].read_bytes()

        await eventually("equal logs of the coordinators", equal_logs)
        of_kafka, of_klamm = [await dump(broker) for broker in brokers]
        assert of_kafka == of_klamm
        states = [match.group(1) for line in of_klamm if (match := re.search(r"state=(\w+)", line))]
        assert states.count("CompleteCommit") == 4 and states.count("CompleteAbort") == 2, of_klamm
        assert not [line for line in of_klamm if "isvalid: false" in line]
