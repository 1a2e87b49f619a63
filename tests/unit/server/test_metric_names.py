"""A live broker has every metric that docs/metrics.md, the Grafana board and the alert rules name, and no other."""

from __future__ import annotations

import asyncio
import json
import random
import re
import runpy
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from klamm.client.addresses import addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin
from klamm.client.producer import Producer
from klamm.client.reader import Reader
from klamm.model.config import read_broker_config
from klamm.model.ids import TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_server import BrokerServer
from klamm.server.runtime import real_ports
from klamm.telemetry.metric_texts import METRIC_TEXTS
from klamm.wire.records import Record
from klamm.zookeeper.server.memory import MemoryZooKeeper

ROOT = Path(__file__).parents[3]
CONTRIB = ROOT / "contrib"
NAME = re.compile(r"\b(?:kafka|klamm|process)_[a-z0-9_]+")
NOT_IN_THE_REFERENCE = re.compile(r"process_.*")


def queries() -> Iterator[tuple[str, str]]:
    board = json.loads((CONTRIB / "grafana-klamm.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]
    for group in yaml.safe_load((CONTRIB / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert {"summary", "cure"} <= set(rule["annotations"]), rule["alert"]
            yield rule["alert"], rule["expr"]


async def scrape(tmp_path: Path) -> tuple[set[str], set[str]]:
    """Families and samples of a broker that was used."""
    async with MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1)).running() as zookeeper:
        settings = {
            "broker.id": "1",
            "zookeeper.connect": zookeeper.address,
            "listeners": "CLIENT://127.0.0.1:0,INTERNAL://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "log.dirs": str(tmp_path / "logs"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "log.flush.interval.messages": "1",
            "controlled.shutdown.enable": "false",
            "klamm.http.listener": "127.0.0.1:0",
        }
        async with BrokerServer(read_broker_config(settings)[0], real_ports()).running() as server:
            await use(f"127.0.0.1:{server.endpoints[0].port}")
            assert server.http is not None
            text = await asyncio.to_thread(read, f"{server.http.url}/metrics")
    families = list(text_string_to_metric_families(text))
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return names, names | {sample.name for family in families for sample in family.samples}


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


async def use(bootstrap: str) -> None:
    place = TopicPartition("t", 0)
    async with ClusterClient(addresses(bootstrap)).running() as client:
        assert await Admin(client).create_topics({"t": NewTopic(1, 1)}) == {"t": None}
        await Producer(client).send("t", {0: [Record(None, b"x", 0)]})
        reader = Reader(client, {place: 0})
        while not await reader.poll():
            pass
        await reader.close()
        await GroupAdmin(client).commit("g", {place: 1})


async def test_the_names_that_others_use_exist(tmp_path: Path) -> None:
    async with asyncio.timeout(60):
        families, samples = await scrape(tmp_path)
    missing = {title: found - samples for title, query in queries() if (found := set(NAME.findall(query))) - samples}
    assert not missing, "contrib/ asks for metrics that no broker has"
    prometheus_name = runpy.run_path(str(ROOT / "scripts" / "metrics.py"))["prometheus_name"]
    described = {prometheus_name(*kind.split(":"), name) for kind, texts in METRIC_TEXTS.items() for name in texts}
    found = {name for name in families if not NOT_IN_THE_REFERENCE.fullmatch(name)}
    assert found - described == set(), "add them to telemetry/metric_texts.py and run scripts/metrics.py"
    assert described - found == set(), "docs/metrics.md has metrics that a broker does not have"
