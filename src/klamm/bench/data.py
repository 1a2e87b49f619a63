"""klamm bench data: what three brokers take and give, measured with Apache Kafka's own clients.

The loads are in `data_loads.py`. Both contenders run three brokers with shipped settings on the real ZooKeeper, in turn
(klamm, Kafka, klamm, ...), each round from nothing, after a load that is not counted: a JVM compiles itself in its
first seconds. The machine also runs the clients, so a throughput is what brokers and clients reach together.

Processor time and memory are those of the three brokers. Memory is their proportional set size, the largest of what
was seen after each load.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from klamm.bench.contenders import INTER_BROKER_PROTOCOL, ShippedApacheKafka, ShippedKlamm, require_kafka
from klamm.bench.data_loads import LOADS, WARM_UP, Load, Sample
from klamm.bench.processes import cpu_seconds, memory_mb
from klamm.bench.stubs import BenchFailed
from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.server.broker_process import BrokerProcess
from klamm.testing.apache_kafka import MixedCluster
from klamm.testing.waiting import eventually
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

BROKERS: Final = 3
KLAMM: Final = "klamm"
MEMORY: Final = "memory_mb"

Start = Callable[[int, str, Path], BrokerProcess]
Progress = Callable[[str], None]


def bench(*, rounds: int, scale: float, against: str | None, only: Sequence[str], progress: Progress) -> dict[str, Any]:
    """`scale` multiplies the number of records, `only` names the loads to run (all if empty)."""
    loads = _chosen(only)
    contenders: dict[str, Start] = {KLAMM: ShippedKlamm}
    if against is not None:
        version = require_kafka(against)
        contenders[against] = lambda number, zookeeper, directory: ShippedApacheKafka(
            version, number, zookeeper, directory, inter_broker_protocol=INTER_BROKER_PROTOCOL
        )
    samples: dict[str, list[dict[str, Sample]]] = {name: [] for name in contenders}
    for number in range(1, rounds + 1):
        for name, start in contenders.items():
            with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
                told = lambda line, name=name, number=number: progress(f"round {number}, {name}: {line}")  # noqa: E731
                samples[name].append(asyncio.run(_round(start, Path(directory), loads, scale, told)))
    return report(samples, rounds, scale)


def _chosen(only: Sequence[str]) -> list[Load]:
    unknown = set(only) - {load.name for load in LOADS}
    if unknown:
        raise BenchFailed(f"unknown loads {', '.join(sorted(unknown))}; choose from {', '.join(x.name for x in LOADS)}")
    wanted = {*only, *(load.reads for load in LOADS if load.name in only)}
    return [load for load in LOADS if not only or load.name in wanted]


async def _round(
    start: Start, directory: Path, loads: Sequence[Load], scale: float, progress: Progress
) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    async with _cluster(start, directory) as cluster:
        pids = [broker.pid for broker in cluster.brokers.values()]
        await WARM_UP.run(cluster.bootstrap, scale)
        for load in loads:
            before = sum(map(cpu_seconds, pids))
            result = await load.run(cluster.bootstrap, scale)
            spent = sum(map(cpu_seconds, pids)) - before
            figures = {**result.figures, "cpu_us_per_record": spent / result.records * 1e6, MEMORY: memory_mb(pids)}
            found[load.name] = figures
            progress(f"{load.name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in figures.items()))
    return found


@asynccontextmanager
async def _cluster(start: Start, directory: Path) -> AsyncIterator[MixedCluster]:
    async with EmbeddedZooKeeper(directory / "zookeeper", force_sync=False).running() as zookeeper:
        brokers = [start(n, zookeeper.connect_string, directory / str(n)) for n in range(1, BROKERS + 1)]
        async with MixedCluster(brokers).running() as cluster:

            async def is_ready() -> bool:
                async with ClusterClient(addresses(cluster.bootstrap)).running() as client:
                    return client.controller_id >= 0 and len(client.brokers) == BROKERS

            await eventually("all brokers in the metadata", is_ready)
            yield cluster


def report(samples: Mapping[str, Sequence[Mapping[str, Sample]]], rounds: int, scale: float) -> dict[str, Any]:
    """Medians with the least and the most, and ratios above 1 where klamm is better."""
    result: dict[str, Any] = {"brokers": BROKERS, "rounds": rounds, "scale": scale, "clusters": {}}
    for name, found in samples.items():
        result["clusters"][name] = {
            MEMORY: _summary([max(sample[MEMORY] for sample in one.values()) for one in found]),
            "loads": {
                load: {figure: _summary([one[load][figure] for one in found]) for figure in found[0][load]}
                for load in found[0]
            },
        }
    rival = next((name for name in samples if name != KLAMM), None)
    if rival is not None:
        ours, theirs = result["clusters"][KLAMM], result["clusters"][rival]
        result["ratios"] = {
            MEMORY: _ratio(MEMORY, ours[MEMORY], theirs[MEMORY]),
            "loads": {
                load: {
                    figure: _ratio(figure, ours["loads"][load][figure], theirs["loads"][load][figure]) for figure in f
                }
                for load, f in ours["loads"].items()
            },
        }
    return result


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


def _ratio(figure: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Above 1 means that klamm is better: more records a second, or less of anything else."""
    more, less = (ours, theirs) if figure == "records_per_second" else (theirs, ours)
    return round(more["median"] / max(less["median"], 0.01), 2)
