"""How long three brokers and a ZooKeeper take to be ready, and how much memory they use; klamm's and Apache Kafka's.

Ready means that every broker knows a controller and all brokers. Memory is the proportional set size of all processes,
with the one that forks klamm's: pages that several processes share count once. Rounds alternate between the contenders.
Each of klamm's begins without a fork server, like the first cluster of a test run, and then times the next cluster.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from klamm.bench.bytecode import bytecode_at_hand
from klamm.bench.processes import memory_mb
from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.server import fork_server
from klamm.server.local_cluster import LocalCluster
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.testing.waiting import eventually
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

BROKERS: Final = 3
SETTLE_SECONDS: Final = 1.0
"""Memory is read this long after the cluster is ready, when late imports are done."""
KAFKA: Final = "apache-kafka-"

Figures = dict[str, float]
"""`ready_seconds` and `memory_mb`; klamm's also have `next_ready_seconds`."""


def bench(*, rounds: int, against: str | None, progress: Callable[[str], None]) -> dict[str, Any]:
    contenders: dict[str, Callable[[Path], Awaitable[Figures]]] = {"klamm": _klamm}
    if against is not None:
        version = against.removeprefix(KAFKA)
        contenders[against] = lambda directory: _apache_kafka(version, directory)
    found: dict[str, list[Figures]] = {name: [] for name in contenders}
    with bytecode_at_hand():
        for number in range(1, rounds + 1):
            for name, start in contenders.items():
                with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
                    figures = asyncio.run(_run(start, Path(directory)))
                seconds, megabytes = figures["ready_seconds"], figures["memory_mb"]
                progress(f"round {number}: {name} was ready after {seconds:.2f} s with {megabytes:.0f} MB")
                found[name].append(figures)
    result: dict[str, Any] = {"brokers": BROKERS, "rounds": rounds, "clusters": {}}
    for name, measured in found.items():
        result["clusters"][name] = {
            figure: round(statistics.median(figures[figure] for figures in measured), 3) for figure in measured[0]
        }
    if against is not None:
        ours, theirs = result["clusters"]["klamm"], result["clusters"][against]
        result["ratios"] = {figure: round(theirs[figure.removeprefix("next_")] / ours[figure], 1) for figure in ours}
    return result


async def _run(start: Callable[[Path], Awaitable[Figures]], directory: Path) -> Figures:
    return await start(directory)


async def _klamm(directory: Path) -> Figures:
    fork_server.end()
    figures = await _klamm_cluster(directory / "first")
    return {**figures, "next_ready_seconds": (await _klamm_cluster(directory / "next"))["ready_seconds"]}


async def _klamm_cluster(directory: Path) -> Figures:
    began = time.monotonic()
    async with LocalCluster(directory, brokers=BROKERS, zookeeper="memory").running() as cluster:
        seconds = time.monotonic() - began
        await asyncio.sleep(SETTLE_SECONDS)
        own = cluster.zookeeper_server
        pids = [own.pid if own is not None else None, fork_server.process_id()]
        pids += [broker.pid for broker in cluster.brokers.values()]
        return {"ready_seconds": seconds, "memory_mb": memory_mb(pid for pid in pids if pid is not None)}


async def _apache_kafka(version: str, directory: Path) -> Figures:
    began = time.monotonic()
    async with EmbeddedZooKeeper(directory / "zookeeper", force_sync=False).running() as zookeeper:
        brokers = [
            ApacheKafkaBroker(version, n, zookeeper.connect_string, directory / str(n), archived=False)
            for n in range(1, BROKERS + 1)
        ]
        async with MixedCluster(brokers).running() as cluster:
            await _wait_until_ready([broker.address for broker in brokers])
            seconds = time.monotonic() - began
            await asyncio.sleep(SETTLE_SECONDS)
            assert zookeeper.pid is not None
            pids = [zookeeper.pid, *(broker.pid for broker in cluster.brokers.values())]
            return {"ready_seconds": seconds, "memory_mb": memory_mb(pids)}


async def _wait_until_ready(bootstraps: list[str]) -> None:
    for bootstrap in bootstraps:

        async def knows_all(bootstrap: str = bootstrap) -> bool:
            async with ClusterClient(addresses(bootstrap)).running() as client:
                return client.controller_id >= 0 and len(client.brokers) == BROKERS

        await eventually(f"all brokers in the metadata of {bootstrap}", knows_all)
