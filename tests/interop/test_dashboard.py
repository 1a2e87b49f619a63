"""The dashboard over Apache Kafka in ZooKeeper mode: every page shows what the test caused there.

`make soak` does it with 20,000 partitions. Both print the time to the first page and the memory of the process.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from klamm.client.addresses import addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin
from klamm.client.producer import Producer
from klamm.model.ids import TopicPartition
from klamm.server.server_process import ServerProcess, klamm_command
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.testing.waiting import eventually
from klamm.wire.records import Record
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

FULL = os.environ.get("KLAMM_SCALE") == "full"
PARTITIONS = 20_000 if FULL else 200
TOPICS = 20
BROKERS = 4 if FULL else 2
"""Each log costs Kafka an open file: with four brokers, 10,000 of them on each."""
SMALL = {"offsets.topic.num.partitions": "1", "auto.leader.rebalance.enable": "false"}


class Dashboard(ServerProcess):
    def __init__(self, log: Path, bootstrap: str) -> None:
        super().__init__("the dashboard", log)
        self._bootstrap = bootstrap
        self._url = ""

    def command(self) -> Sequence[str]:
        return klamm_command("dashboard", "--port", "0", "--bootstrap-server", self._bootstrap)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Dashboard]:
        self._url = await self.start()
        try:
            yield self
        finally:
            await self.stop()
        assert "Traceback" not in self.log_text(), self.log_text()

    async def text(self, path: str) -> str:
        """The page without its markup, with single spaces."""
        page = await asyncio.to_thread(self._get, path)
        body = re.sub(r"<(script|style|title|svg)\b.*?</\1>", " ", page, flags=re.S)
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:
            page: str = answer.read().decode()
            return page

    async def shows(self, path: str, *parts: str) -> None:
        """Wait until the page has all of these, in this order."""
        wanted = re.compile(".*?".join(map(re.escape, parts)), re.S)
        seen = ""

        async def found() -> bool:
            nonlocal seen
            seen = await self.text(path)
            return wanted.search(seen) is not None

        await eventually(lambda: f"{parts} on {path}: {seen}", found)

    @property
    def memory_mb(self) -> int:
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(kilobytes) // 1024


@pytest.mark.timeout(1800 if FULL else 240)
@pytest.mark.parametrize("version", ["2.5.1", "3.9.1"])
async def test_every_page(version: str, zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    heap_mb = 1024 if FULL else 256
    brokers = [
        ApacheKafkaBroker(version, n, zookeeper.connect_string, tmp_path / str(n), heap_mb=heap_mb, properties=SMALL)
        for n in range(1, BROKERS + 1)
    ]
    each = PARTITIONS // TOPICS
    async with MixedCluster(brokers).running() as cluster:
        client = ClusterClient(addresses(cluster.bootstrap), timeout=120.0)
        async with client.running():
            admin, groups = Admin(client), GroupAdmin(client)
            for number in range(TOPICS):
                await admin.create_topics({f"orders-{number}": NewTopic(each, 2)})
            place = TopicPartition("orders-0", 0)
            await Producer(client).send("orders-0", {0: [Record(b"key", f"value-{n}".encode()) for n in range(9)]})
            await groups.commit("billing", {place: 4})
            in_all = PARTITIONS + 1  # and that of group offsets
            async with Dashboard(tmp_path / "dashboard.txt", cluster.bootstrap).running() as pages:
                began = time.monotonic()
                first = await pages.text("/")
                seconds = time.monotonic() - began
                assert f"{in_all:,} partitions" in first, first
                print(f"{version}, {PARTITIONS} partitions: first page after {seconds:.2f} s", end=", ")
                await pages.shows("/", f"Healthy: {BROKERS} brokers, {in_all} partitions, all in sync.")
                print(f"{pages.memory_mb} MB")
                controller = re.search(r"Broker (\d) is the controller", await pages.text("/controller"))
                assert controller is not None
                other = 2 if controller[1] == "1" else 1
                await pages.shows("/brokers", "1 up", f":{cluster[1].port}", "2 up")
                await pages.shows("/brokers/1", "of", "replicas, 0 not in sync")
                await pages.shows("/topics?q=orders-7", "orders-7", "in sync", str(each), "2")
                await pages.shows("/topics/orders-0", f"{each}", "2 replicas each")
                await pages.shows("/groups", "billing", "Empty", "5")
                await pages.shows("/groups/billing", "orders-0-0", "4", "9", "5")
                await pages.shows("/messages?topic=orders-0&partition=0&from=offset&offset=8", "key", "value-8")
                await pages.shows("/configuration?topic=orders-0&q=min.insync", "min.insync.replicas", "1")
                await pages.shows("/configuration", "All brokers have the same settings")
                await pages.shows("/doctor", "Nothing is wrong in ZooKeeper.")
                await pages.shows("/reassignments", "No partition is being moved.")
                await admin.delete_topics(["orders-19"])
                await pages.shows("/timeline?topic=orders-19", "topic orders-19 no longer exists", "it was deleted")
                await pages.shows("/deletions", "No topic is marked for deletion.")
                await cluster[other].kill()
                await pages.shows("/", f"roker {other} is down")
                await pages.shows(f"/timeline?kind=broker&broker={other}", f"broker {other} is gone")
