"""klamm bench zookeeper: klamm's ZooKeeper client and kazoo in turn, on one real server and the same znodes.

Each client is used at its best: klamm's with bulk calls, kazoo with its asynchronous API and a bounded window of
requests in flight. Every set states the expected version; klamm's also carry a fence, as a controller's do. Every
timing uses a new session, so that nothing is left from an earlier one (watches, a warm window). A first round of both
does not count, because the server compiles its code in the first seconds. The figures are wall-clock seconds; the
report also has the CPU seconds of this process, which a busy machine distorts less.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop
from kazoo.client import KazooClient

from klamm.controller.term import GC_THRESHOLD_WHILE_LOADING
from klamm.model.errors import KlammError
from klamm.model.ports import Create, Fence, Sets
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

SESSION_TIMEOUT_MS: Final = 30_000
KAZOO_IN_FLIGHT: Final = 5_000
"""A larger window does not help kazoo, which writes and reads in one thread."""
DATA_BYTES: Final = 80
NODES_PER_PARENT: Final = 100
FENCE: Final = "/fence"
OPERATIONS: Final = ("get", "set", "watch")


class WrongAnswer(KlammError):
    """A client did not do the work that was timed."""


class Timing(NamedTuple):
    wall: float
    processor: float


class ClientBench:
    def __init__(self, address: str, nodes: int) -> None:
        self._address = address
        self._paths = [f"/bench/{n // NODES_PER_PARENT:05d}/{n % NODES_PER_PARENT}" for n in range(nodes)]
        self._data = bytes(random.Random(1).choices(range(32, 127), k=DATA_BYTES))
        self._version = 0  # the version of every znode: each round of sets adds one to all of them

    async def fill(self) -> None:
        async with self._ours().running() as zk:
            parents = sorted({path.rpartition("/")[0] for path in self._paths})
            await zk.write_many([Create(FENCE), Create("/bench"), *map(Create, parents)])
            await zk.write_many([Create(path, self._data) for path in self._paths])

    # --- ours --------------------------------------------------------------------------------------------------------

    def _ours(self) -> ZooKeeperClient:
        return ZooKeeperClient(AsyncioNetwork(), SystemClock(), random.Random(1), self._address, SESSION_TIMEOUT_MS)

    async def ours(self, operation: str) -> Timing:
        async with self._ours().running() as zk:
            if operation == "set":
                count = len(self._paths)
                ops = Sets(self._paths, [self._data] * count, [self._version] * count)
                timing, results = await _timed(lambda: zk.write_many(ops, Fence(FENCE, 0)))
                self._version += 1  # the version that the next round expects, kazoo's too
                _check(len(results) == count and not any(isinstance(r, Exception) for r in results), "a set failed")
                return timing
            if operation == "watch":
                timing, nodes = await _timed(lambda: zk.get_many_and_watch(self._paths, lambda _: None))
                _check(zk.watch_count == len(self._paths), "a watch is missing")
            else:
                timing, nodes = await _timed(lambda: zk.get_many(self._paths))
            _check(all(node is not None and node.data == self._data for node in nodes), "a node was not read")
            return timing

    # --- kazoo -------------------------------------------------------------------------------------------------------

    async def kazoo(self, operation: str) -> Timing:
        client = KazooClient(hosts=self._address, timeout=SESSION_TIMEOUT_MS / 1000)
        await asyncio.to_thread(client.start, SESSION_TIMEOUT_MS / 1000)
        try:
            timing, results = await _timed(lambda: asyncio.to_thread(self._kazoo, client, operation))
        finally:
            await asyncio.to_thread(client.stop)
            await asyncio.to_thread(client.close)
        _check(len(results) == len(self._paths), "kazoo gave too few answers")
        return timing

    def _kazoo(self, client: KazooClient, operation: str) -> list[Any]:
        if operation == "set":
            version, data = self._version, self._data
            self._version += 1
            return _windowed(self._paths, lambda path: client.set_async(path, data, version))
        if operation == "watch":
            return _windowed(self._paths, lambda path: client.get_async(path, _ignore))
        return _windowed(self._paths, client.get_async)


def _ignore(event: object) -> None:
    """The watch fires when its session is closed."""


def _windowed(paths: Sequence[str], send: Callable[[str], Any]) -> list[Any]:
    window: deque[Any] = deque()
    results = []
    for path in paths:
        if len(window) == KAZOO_IN_FLIGHT:
            results.append(window.popleft().get())
        window.append(send(path))
    results += [pending.get() for pending in window]
    return results


async def _timed(work: Callable[[], Awaitable[list[Any]]]) -> tuple[Timing, list[Any]]:
    gc.collect()  # do not count the garbage of the previous timing
    wall, processor = time.monotonic(), time.process_time()
    results = await work()
    return Timing(time.monotonic() - wall, time.process_time() - processor), results


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise WrongAnswer(what)


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(operations: int, timings: Sequence[Timing]) -> dict[str, float]:
    walls = [timing.wall for timing in timings]
    median = statistics.median(walls)
    return {
        "operations": operations,
        "seconds": round(median, 3),
        "seconds_least": round(min(walls), 3),
        "seconds_most": round(max(walls), 3),
        "processor_seconds": round(statistics.median(timing.processor for timing in timings), 3),
        "operations_per_second": round(operations / median),
    }


async def run(*, nodes: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        zookeeper = EmbeddedZooKeeper(Path(directory), force_sync=False, heap_mb=2048, lasting=True)
        async with zookeeper.running():
            bench = ClientBench(zookeeper.connect_string, nodes)
            await bench.fill()
            ours: dict[str, list[Timing]] = {operation: [] for operation in OPERATIONS}
            kazoo: dict[str, list[Timing]] = {operation: [] for operation in OPERATIONS}
            for operation in OPERATIONS:
                await bench.kazoo(operation)
                await bench.ours(operation)
                for _ in range(rounds):
                    kazoo[operation].append(await bench.kazoo(operation))
                    ours[operation].append(await bench.ours(operation))
    results = {}
    for operation in OPERATIONS:
        mine, theirs = _figures(nodes, ours[operation]), _figures(nodes, kazoo[operation])
        ratio = statistics.median(s.wall for s in kazoo[operation]) / statistics.median(s.wall for s in ours[operation])
        results[operation] = {"klamm": mine, "kazoo": theirs, "ratio": round(ratio, 1)}
    return {
        "nodes": nodes,
        "data_bytes": DATA_BYTES,
        "rounds": rounds,
        "kazoo_in_flight": KAZOO_IN_FLIGHT,
        "load_average": round(os.getloadavg()[0], 2),
        "processors": os.cpu_count(),
        "results": results,
    }


def bench(*, nodes: int, rounds: int) -> dict[str, Any]:
    """Use the event loop of a broker, and the garbage collector settings of a controller that loads its context: both
    clients keep what they read, so collecting again and again would free nothing."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD_WHILE_LOADING, *thresholds[1:])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(nodes=nodes, rounds=rounds))
    finally:
        gc.set_threshold(*thresholds)
