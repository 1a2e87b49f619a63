"""klamm bench controller: a dedicated controller process over stub brokers and one real ZooKeeper, seen from outside.

Figures are seconds from the stimulus to the last control request that the last stub received: a cold process that loads
the cluster, a re-election after /controller was deleted, a broker that dies (60 % of the partitions touched at
replication 3 of 5). Shipped defaults: state-change log and events on. Beside them the memory of the controller process,
the longest hold of its event loop, and what was sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import orjson

from klamm.admin.placement import PlacementBroker, place
from klamm.bench.stubs import HOST, LISTENER, StubBroker, quiet
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Create
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.child import ServerProcess
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

CONTROLLER_ID: Final = 100
PARTITIONS_PER_TOPIC: Final = 100
SESSION_TIMEOUT_MS: Final = 30_000


async def run(*, partitions: int, brokers: int, replication: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as name:
        async with AsyncExitStack() as stack:
            return await _run(stack, Path(name), partitions, brokers, replication, rounds)


async def _run(
    stack: AsyncExitStack, directory: Path, partitions: int, brokers: int, replication: int, rounds: int
) -> dict[str, Any]:
    zookeeper = EmbeddedZooKeeper(directory / "zookeeper", force_sync=False, heap_mb=2048)
    await stack.enter_async_context(zookeeper.running())
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(1)

    def connect() -> ZooKeeperClient:
        return ZooKeeperClient(network, clock, rng, zookeeper.connect_string, SESSION_TIMEOUT_MS)

    zk = connect()
    await zk.start()
    stack.push_async_callback(zk.close)
    ids = range(1, brokers + 1)
    await write_cluster(zk, partitions, ids, replication)
    stubs = [StubBroker(broker, network, clock, connect) for broker in ids]
    for stub in stubs:
        await stub.start()
        stack.push_async_callback(stub.stop)

    cold, reelection, death, returned, memory = [], [], [], [], 0.0
    process = _controller_process(directory, zookeeper.connect_string)
    stack.push_async_callback(process.kill)
    for _ in range(rounds):
        started = time.monotonic()
        await process.start(timeout=600)
        cold.append(await quiet(stubs, started))
        started = time.monotonic()
        await zk.delete(controller_znode.PATH)
        reelection.append(await quiet(stubs, started))
        started = time.monotonic()
        await stubs[-1].leave()
        death.append(await quiet(stubs[:-1], started))
        started = time.monotonic()
        await stubs[-1].register()
        returned.append(await quiet(stubs, started))
        memory = max(memory, _resident_mb(process))
        await process.stop()
    return {
        "partitions": partitions,
        "brokers": brokers,
        "replication": replication,
        "rounds": rounds,
        "seconds": {
            "cold_load": _figures(cold),
            "re_election": _figures(reelection),
            "broker_death": _figures(death),
            "broker_return": _figures(returned),
        },
        "memory_mb": round(memory),
        "loop_held_longest_ms": _longest_hold_ms(directory),
        "control_requests": dict(sorted(sum((stub.received for stub in stubs), Counter[str]()).items())),
        "control_bytes": sum(stub.bytes_received for stub in stubs),
        "events_written": _count_lines(directory / "controller" / "state-change.json"),
    }


async def write_cluster(zk: ZooKeeperClient, partitions: int, brokers: Sequence[int], replication: int) -> None:
    """Topics of 100 partitions, spread as Kafka would, every partition led by its first replica."""
    for path in PERSISTENT_PATHS:
        await zk.ensure_path(path)
    nodes: list[Create] = []
    states: list[Create] = []
    rng = random.Random(7)
    placed = [PlacementBroker(BrokerId(broker), None) for broker in brokers]
    for number in range(-(-partitions // PARTITIONS_PER_TOPIC)):
        topic = f"bench-{number:05d}"
        count = min(PARTITIONS_PER_TOPIC, partitions - number * PARTITIONS_PER_TOPIC)
        start, shift = rng.randrange(len(placed)), rng.randrange(len(placed))
        placement = place(placed, range(count), replication, start=start, shift=shift)
        assignments = {index: Assignment(replicas) for index, replicas in placement.items()}
        nodes += [
            Create(config_znode.topic_path(topic), config_znode.encode({})),
            Create(topic_znode.path(topic), topic_znode.encode(assignments)),
            Create(partition_state.partitions_path(topic)),
        ]
        for index, assignment in assignments.items():
            name = TopicPartition(topic, index)
            state = LeaderAndIsr(assignment.replicas[0], LeaderEpoch(0), assignment.replicas, ControllerEpoch(0))
            nodes.append(Create(partition_state.partition_path(name)))
            states.append(Create(partition_state.path(name), partition_state.encode(state)))
    await zk.write_many(nodes)
    await zk.write_many(states)


def _controller_process(directory: Path, zookeeper: str) -> ServerProcess:
    home = directory / "controller"
    home.mkdir()
    properties = home / "server.properties"
    properties.write_text(
        f"broker.id={CONTROLLER_ID}\n"
        f"zookeeper.connect={zookeeper}\n"
        f"listeners=CLIENT://{HOST}:0,{LISTENER}://{HOST}:0\n"
        f"listener.security.protocol.map=CLIENT:PLAINTEXT,{LISTENER}:PLAINTEXT\n"
        f"inter.broker.listener.name={LISTENER}\n"
        f"log.dirs={home / 'data'}\n"
        "klamm.controller.only=true\n"
    )
    return ServerProcess("controller", ["broker", str(properties)], home / "broker.log")


def _figures(samples: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(samples), 3),
        "least": round(min(samples), 3),
        "most": round(max(samples), 3),
    }


def _resident_mb(process: ServerProcess) -> float:
    assert process.pid is not None
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _longest_hold_ms(directory: Path) -> float:
    longest = 0.0
    with (directory / "controller" / "state-change.json").open("rb") as events:
        for line in events:
            if b'"loop-held"' in line:
                longest = max(longest, orjson.loads(line)["duration_ms"])
    return round(longest, 1)


def _count_lines(path: Path) -> int:
    with path.open("rb") as lines:
        return sum(1 for _ in lines)


def bench(*, partitions: int, brokers: int, replication: int, rounds: int) -> dict[str, Any]:
    return asyncio.run(run(partitions=partitions, brokers=brokers, replication=replication, rounds=rounds))
