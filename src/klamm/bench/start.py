"""How long three brokers and a ZooKeeper take to be ready, and how much memory they use; klamm's and Apache Kafka's.

Ready means that every broker knows a controller and all brokers. Memory is the proportional set size of all processes:
pages that several processes share count once. Rounds alternate between the contenders.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from klamm.bench.processes import memory_mb
from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.server.local_cluster import LocalCluster
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.testing.waiting import eventually
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

BROKERS: Final = 3
SETTLE_SECONDS: Final = 1.0
"""Memory is read this long after the cluster is ready, when late imports are done."""
KAFKA: Final = "apache-kafka-"

Figures = tuple[float, float]
"""Seconds and megabytes."""


def bench(*, rounds: int, against: str | None, progress: Callable[[str], None]) -> dict[str, Any]:
    contenders: dict[str, Callable[[Path], Awaitable[Figures]]] = {"klamm": _klamm}
    if against is not None:
        version = against.removeprefix(KAFKA)
        contenders[against] = lambda directory: _apache_kafka(version, directory)
    found: dict[str, list[Figures]] = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name, start in contenders.items():
            with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
                figures = asyncio.run(_run(start, Path(directory)))
            progress(f"round {number}: {name} was ready after {figures[0]:.2f} s with {figures[1]:.0f} MB")
            found[name].append(figures)
    result: dict[str, Any] = {"brokers": BROKERS, "rounds": rounds, "clusters": {}}
    for name, all_figures in found.items():
        seconds, megabytes = zip(*all_figures, strict=True)
        result["clusters"][name] = {
            "ready_seconds": round(statistics.median(seconds), 3),
            "memory_mb": round(statistics.median(megabytes), 1),
        }
    if against is not None:
        ours, theirs = result["clusters"]["klamm"], result["clusters"][against]
        result["ratios"] = {figure: round(theirs[figure] / ours[figure], 1) for figure in ours}
    return result


async def _run(start: Callable[[Path], Awaitable[Figures]], directory: Path) -> Figures:
    return await start(directory)


async def _klamm(directory: Path) -> Figures:
    began = time.monotonic()
    async with LocalCluster(directory, brokers=BROKERS, zookeeper="memory").running() as cluster:
        seconds = time.monotonic() - began
        await asyncio.sleep(SETTLE_SECONDS)
        own = cluster.zookeeper_server
        pids = [broker.pid for broker in cluster.brokers.values()] + ([own.pid] if own is not None and own.pid else [])
        return seconds, memory_mb(pids)


async def _apache_kafka(version: str, directory: Path) -> Figures:
    began = time.monotonic()
    async with EmbeddedZooKeeper(directory / "zookeeper", force_sync=False).running() as zookeeper:
        brokers = [
            ApacheKafkaBroker(version, n, zookeeper.connect_string, directory / str(n)) for n in range(1, BROKERS + 1)
        ]
        async with MixedCluster(brokers).running() as cluster:
            await _wait_until_ready([broker.address for broker in brokers])
            seconds = time.monotonic() - began
            await asyncio.sleep(SETTLE_SECONDS)
            assert zookeeper.pid is not None
            return seconds, memory_mb([zookeeper.pid, *(broker.pid for broker in cluster.brokers.values())])


async def _wait_until_ready(bootstraps: list[str]) -> None:
    for bootstrap in bootstraps:

        async def knows_all(bootstrap: str = bootstrap) -> bool:
            async with ClusterClient(addresses(bootstrap)).running() as client:
                return client.controller_id >= 0 and len(client.brokers) == BROKERS

        await eventually(f"all brokers in the metadata of {bootstrap}", knows_all)
