"""klamm bench controller: a dedicated controller process over stub brokers and one real ZooKeeper, seen from outside.

Figures are seconds from the stimulus to the last control request that the last stub received: a cold process that loads
the cluster, a re-election after /controller was deleted, a broker that dies (60 % of the partitions touched at
replication 3 of 5), its return, a topic of 2,000 partitions; and until the answer of a controlled shutdown. Every round
starts from the same cluster. Shipped defaults: state-change log and events on. Beside them the processor seconds of the
controller process, which a busy machine stretches less than the others, its memory, the longest hold of its event loop,
and what was sent.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import orjson

from klamm.admin.placement import PlacementBroker, place
from klamm.bench.stubs import HOST, LISTENER, StubBroker, quiet
from klamm.model.brokers import Endpoint
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Create, Delete, Set
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.child import ServerProcess
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.znodes import broker_id, partition_state
from klamm.zookeeper.znodes import config as config_znode
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

CONTROLLER_ID: Final = 100
PARTITIONS_PER_TOPIC: Final = 100
SESSION_TIMEOUT_MS: Final = 30_000
NEW_TOPIC: Final = "bench-new"
NEW_PARTITIONS: Final = 2_000


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
    cluster = await write_cluster(zk, partitions, ids, replication)
    stubs = [StubBroker(broker, network, clock, connect) for broker in ids]
    for stub in stubs:
        await stub.start()
        stack.push_async_callback(stub.stop)

    process = _controller_process(directory, zookeeper.connect_string)
    stack.push_async_callback(process.kill)
    seconds: dict[str, list[float]] = {}
    cpu_seconds: dict[str, list[float]] = {}
    memory = 0.0

    async def measure(name: str, stimulus: Awaitable[object], told: Sequence[StubBroker] | None) -> None:
        """`told`: who must have heard the last word; None when the answer to the stimulus is the end."""
        began, used = time.monotonic(), _cpu_seconds(process)
        await stimulus
        took = time.monotonic() - began if told is None else await quiet(told, began)
        seconds.setdefault(name, []).append(took)
        cpu_seconds.setdefault(name, []).append(_cpu_seconds(process) - used)

    for number in range(rounds):
        if number:
            await reset_cluster(zk, cluster)
        await measure("cold_load", process.start(timeout=600), stubs)
        await measure("re_election", zk.delete(controller_znode.PATH), stubs)
        await measure("broker_death", stubs[-1].leave(), stubs[:-1])
        await measure("broker_return", stubs[-1].register(), stubs)
        began = time.monotonic()
        await measure("controlled_shutdown", stubs[0].shut_down(await _controller_endpoint(zk)), None)
        await quiet(stubs, began)
        began = time.monotonic()
        await stubs[0].leave()
        await stubs[0].register()
        await quiet(stubs, began)
        await measure("topic_created", zk.write_many(_topic_nodes(NEW_TOPIC, NEW_PARTITIONS, ids, replication)), stubs)
        memory = max(memory, _resident_mb(process))
        await process.stop()
    return {
        "partitions": partitions,
        "brokers": brokers,
        "replication": replication,
        "rounds": rounds,
        "seconds": {name: _figures(samples) for name, samples in seconds.items()},
        "cpu_seconds": {name: _figures(samples) for name, samples in cpu_seconds.items()},
        "load_average": os.getloadavg()[0],
        "memory_mb": round(memory),
        "loop_held_longest_ms": _longest_hold_ms(directory),
        "control_requests": dict(sorted(sum((stub.received for stub in stubs), Counter[str]()).items())),
        "control_bytes": sum(stub.bytes_received for stub in stubs),
        "events_written": _count_lines(directory / "controller" / "state-change.json"),
    }


async def write_cluster(
    zk: ZooKeeperClient, partitions: int, brokers: Sequence[int], replication: int
) -> dict[str, bytes]:
    """Topics of 100 partitions, spread as Kafka would, every partition led by its first replica. Returns the states."""
    for path in PERSISTENT_PATHS:
        await zk.ensure_path(path)
    nodes: list[Create] = []
    states: dict[str, bytes] = {}
    for number in range(-(-partitions // PARTITIONS_PER_TOPIC)):
        topic = f"bench-{number:05d}"
        count = min(PARTITIONS_PER_TOPIC, partitions - number * PARTITIONS_PER_TOPIC)
        assignments = _placed(topic, count, brokers, replication)
        nodes += _topic_nodes(topic, count, brokers, replication)
        nodes.append(Create(partition_state.partitions_path(topic)))
        for index, assignment in assignments.items():
            name = TopicPartition(topic, index)
            state = LeaderAndIsr(assignment.replicas[0], LeaderEpoch(0), assignment.replicas, ControllerEpoch(0))
            nodes.append(Create(partition_state.partition_path(name)))
            states[partition_state.path(name)] = partition_state.encode(state)
    await zk.write_many(nodes)
    await zk.write_many([Create(path, data) for path, data in states.items()])
    return states


async def reset_cluster(zk: ZooKeeperClient, states: Mapping[str, bytes]) -> None:
    """As `write_cluster` left it, while nobody is controller."""
    await zk.write_many([Set(path, data) for path, data in states.items()])
    names = [TopicPartition(NEW_TOPIC, index) for index in range(NEW_PARTITIONS)]
    below = [partition_state.path(name) for name in names] + [partition_state.partition_path(name) for name in names]
    above = [
        partition_state.partitions_path(NEW_TOPIC),
        topic_znode.path(NEW_TOPIC),
        config_znode.topic_path(NEW_TOPIC),
    ]
    await zk.write_many([Delete(path) for path in below + above])


def _placed(topic: str, count: int, brokers: Sequence[int], replication: int) -> dict[int, Assignment]:
    rng = random.Random(topic)
    start, shift = rng.randrange(len(brokers)), rng.randrange(len(brokers))
    candidates = [PlacementBroker(BrokerId(broker), None) for broker in brokers]
    placement = place(candidates, range(count), replication, start=start, shift=shift)
    return {index: Assignment(replicas) for index, replicas in placement.items()}


def _topic_nodes(topic: str, count: int, brokers: Sequence[int], replication: int) -> list[Create]:
    """What whoever creates a topic writes; the rest is the controller's."""
    return [
        Create(config_znode.topic_path(topic), config_znode.encode({})),
        Create(topic_znode.path(topic), topic_znode.encode(_placed(topic, count, brokers, replication))),
    ]


async def _controller_endpoint(zk: ZooKeeperClient) -> Endpoint:
    path = broker_id.path(BrokerId(CONTROLLER_ID))
    node = await zk.get(path)
    endpoint = broker_id.decode(path, node.data).endpoint(LISTENER)
    assert endpoint is not None
    return endpoint


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


def _cpu_seconds(process: ServerProcess) -> float:
    """User and system, of the process so far; 0 before it runs."""
    if process.pid is None:
        return 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    with tempfile.TemporaryDirectory(prefix="klamm-bytecode-") as bytecode:
        # As an installed klamm starts, with its bytecode at hand, whatever the environment of the benchmark says.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        subprocess.run([sys.executable, "-c", "import klamm.cli.main, klamm.server.process"], check=True)
        return asyncio.run(run(partitions=partitions, brokers=brokers, replication=replication, rounds=rounds))
