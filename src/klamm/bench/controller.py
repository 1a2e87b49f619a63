"""klamm bench controller: a dedicated controller process with stub brokers and a real ZooKeeper, measured from outside.

Each figure is the time from a stimulus to the last control request that any stub received. The stimuli are: a new
process that loads the cluster, a re-election after /controller was deleted, the death of a broker (with 3 replicas on 5
brokers it affects 60 % of the partitions), its return, and a new topic of 2,000 partitions. For a controlled shutdown
the figure ends with the answer. The report also has the CPU seconds of the controller process, which a busy machine
distorts less, its memory, the longest time that its event loop was blocked, the longest time that its thread worked
during that, and what it sent. Settings are the defaults, with the state-change log and events on.

Compared with Apache Kafka, both run in turn (klamm, Kafka, klamm, ...), each round with the same stubs and the same
ZooKeeper, whose states are restored in between. A phase ends when the stubs have received nothing for a while *and* the
process is idle, because Kafka may compute for seconds between two requests. Both check the balance of leaders 5 s after
each election and then every 300 s; so the next stimulus waits for the first check, and a round ends before the second.

One more round, which is not timed, counts the ZooKeeper operations through a relay.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from klamm.bench.bytecode import bytecode_at_hand
from klamm.bench.cluster import PARTITIONS_PER_TOPIC, new_topic, reset_cluster, write_cluster
from klamm.bench.contenders import CONTROLLER_ID, Contender, KlammContender, kafka_contender
from klamm.bench.operation_counts import CountingRelay
from klamm.bench.stubs import LISTENER, BenchFailed, StubBroker, quiet
from klamm.model.brokers import Endpoint
from klamm.model.ids import BrokerId
from klamm.model.ports import Create
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, ZooKeeperNotStarted
from klamm.zookeeper.znodes import broker_id, partition_state
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import topic as topic_znode

Progress = Callable[[str], None]

SESSION_TIMEOUT_MS: Final = 30_000
FIRST_BALANCE_S: Final = 6.0
"""Seconds after the last request of an election until both have checked the balance: 5, and one to spare."""


@dataclass
class Measured:
    """The results of one contender over all timed rounds; `operations` comes from the counted round."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    longest_hold_ms: dict[str, float | None] = field(default_factory=dict)
    longest_busy_ms: dict[str, float | None] = field(default_factory=dict)
    operations: dict[str, dict[str, int]] = field(default_factory=dict)
    memory_mb: list[float] = field(default_factory=list)
    load_average: list[float] = field(default_factory=list)
    events_written: int = 0
    control_requests: Counter[str] = field(default_factory=Counter)
    control_bytes: int = 0


class ControllerBench:
    """A ZooKeeper that holds a cluster, and stub brokers, the same for all contenders."""

    def __init__(
        self,
        zk: ZooKeeperClient,
        stubs: Sequence[StubBroker],
        states: Mapping[str, bytes],
        replication: int,
        progress: Progress,
    ) -> None:
        self._zk = zk
        self._stubs = stubs
        self._progress = progress
        self._states = states
        self._replication = replication
        self._is_fresh = True

    async def round(
        self, contender: Contender, zookeeper: str, measured: Measured, relay: CountingRelay | None
    ) -> None:
        """With a `relay` to ZooKeeper the round counts operations and measures nothing else."""
        if not self._is_fresh:
            await self._reset()
        self._is_fresh = False
        for stub in self._stubs:
            stub.forget()
        contender.new_events()
        if relay is None:
            measured.load_average.append(round(os.getloadavg()[0], 2))
        turn = _Round(self._zk, self._stubs, contender, measured, relay, self._progress)
        await turn.run(zookeeper, self._new_topic())
        if relay is None:
            measured.control_requests += sum((stub.received for stub in self._stubs), Counter[str]())
            measured.control_bytes += sum(stub.bytes_received for stub in self._stubs)

    def _new_topic(self) -> list[Create]:
        return new_topic([stub.id for stub in self._stubs], self._replication)

    async def _reset(self) -> None:
        ours = [controller_znode.PATH, broker_id.path(BrokerId(CONTROLLER_ID))]
        async with asyncio.timeout(60):
            while any(await self._zk.get_many(ours)):
                await asyncio.sleep(0.1)
        await reset_cluster(self._zk, self._states)


class _Round:
    def __init__(
        self,
        zk: ZooKeeperClient,
        stubs: Sequence[StubBroker],
        contender: Contender,
        measured: Measured,
        relay: CountingRelay | None,
        progress: Progress,
    ) -> None:
        self._zk = zk
        self._stubs = stubs
        self._progress = progress
        self._contender = contender
        self._measured = measured
        self._relay = relay

    async def run(self, zookeeper: str, new_topic: Sequence[Create]) -> None:
        zk, stubs, contender = self._zk, self._stubs, self._contender
        victim, leaver = stubs[-1], stubs[0]
        await self._phase("cold_load", self._launch(zookeeper), stubs)
        await self._after_first_balance()
        await self._phase("re_election", zk.delete(controller_znode.PATH), stubs)
        await self._after_first_balance()
        await self._phase("broker_death", victim.leave(), stubs[:-1])
        await self._require_leaders_elsewhere(victim)
        await self._phase("broker_return", victim.register(), stubs)
        await self._phase("controlled_shutdown", leaver.shut_down(await _controller_endpoint(zk)), None)
        await self._require_leaders_elsewhere(leaver)
        await self._phase("", self._bounce(leaver), stubs)
        await self._phase("topic_created", zk.write_many(new_topic), stubs)
        if self._relay is None:
            self._measured.memory_mb.append(contender.resident_mb())
        await contender.stop()

    async def _launch(self, zookeeper: str) -> None:
        self._contender.launch(zookeeper)

    async def _bounce(self, stub: StubBroker) -> None:
        await stub.leave()
        await stub.register()

    async def _phase(self, name: str, stimulus: Awaitable[object], told: Sequence[StubBroker] | None) -> None:
        """Apply a stimulus and measure until the stubs in `told` have received the last request.

        With `told` None the phase ends when the stimulus returns. A phase without a name is not measured.
        """
        contender, counts = self._contender, self._relay.counts.copy() if self._relay is not None else Counter[str]()
        began, used = time.monotonic(), contender.cpu_seconds()
        await stimulus
        answered = time.monotonic() - began
        heard = await quiet(self._stubs if told is None else told, began, contender, self._ask)
        cpu = contender.cpu_seconds() - used
        events = contender.new_events()
        self._progress(
            f"{contender.name} {name or 'in between'}{' (counted)' * (self._relay is not None)}: {heard:.3f} s"
        )
        if not name:
            return
        measured = self._measured
        if self._relay is not None:
            measured.operations[name] = dict(sorted((self._relay.counts - counts).items()))
            return
        measured.seconds.setdefault(name, []).append(answered if told is None else heard)
        measured.cpu_seconds.setdefault(name, []).append(cpu)
        measured.events_written += events.written
        for longest, seen in (
            (measured.longest_hold_ms, events.longest_hold_ms),
            (measured.longest_busy_ms, events.longest_busy_ms),
        ):
            longest[name] = None if seen is None else max(seen, longest.get(name) or 0.0)

    async def _after_first_balance(self) -> None:
        await asyncio.sleep(FIRST_BALANCE_S)
        await quiet(self._stubs, 0.0, self._contender, self._ask)

    async def _ask(self) -> None:
        await self._zk.exists("/")

    async def _require_leaders_elsewhere(self, stub: StubBroker) -> None:
        """Make sure that the controller did the work that was timed."""
        for topic in await self._zk.children(topic_znode.PARENT):
            paths = [f"{partition_state.partitions_path(topic)}/{n}/state" for n in range(PARTITIONS_PER_TOPIC)]
            for path, node in zip(paths, await self._zk.get_many(paths), strict=True):
                if node is not None and partition_state.decode(path, node.data).leader == stub.id:
                    raise BenchFailed(f"{self._contender.name} left {path} with broker {stub.id} as its leader")


async def run(
    *, partitions: int, brokers: int, replication: int, rounds: int, against: str | None, progress: Progress
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as name:
        directory = Path(name)
        contenders: list[Contender] = [KlammContender(directory)]
        if against is not None:
            contenders.append(kafka_contender(against, directory))
        async with AsyncExitStack() as stack:
            zookeeper = EmbeddedZooKeeper(directory / "zookeeper", force_sync=False, heap_mb=2048, lasting=True)
            await stack.enter_async_context(zookeeper.running())
            bench = await _prepared(stack, zookeeper, partitions, range(1, brokers + 1), replication, progress)
            for contender in contenders:
                stack.callback(contender.process.release_ports)
                stack.push_async_callback(contender.process.kill)
            all_measured = await _measure(stack, bench, contenders, zookeeper, rounds)
        result: dict[str, Any] = {
            "partitions": partitions,
            "brokers": brokers,
            "replication": replication,
            "rounds": rounds,
            "processors": os.cpu_count(),
            "controllers": {c.name: _report(c, all_measured[c.name]) for c in contenders},
        }
        if against is not None:
            result["ratios"] = _ratios(all_measured["klamm"], all_measured[against])
        return result


async def _prepared(
    stack: AsyncExitStack,
    zookeeper: EmbeddedZooKeeper,
    partitions: int,
    ids: Sequence[int],
    replication: int,
    progress: Progress,
) -> ControllerBench:
    network, clock, rng = AsyncioNetwork(), SystemClock(), random.Random(1)

    def connect() -> ZooKeeperClient:
        return ZooKeeperClient(network, clock, rng, zookeeper.connect_string, SESSION_TIMEOUT_MS)

    zk = connect()
    await zk.start()
    stack.push_async_callback(zk.close)
    states = await write_cluster(zk, partitions, ids, replication)
    stubs = [StubBroker(broker, network, clock, connect) for broker in ids]
    for stub in stubs:
        await stub.start()
        stack.push_async_callback(stub.stop)
    return ControllerBench(zk, stubs, states, replication, progress)


async def _measure(
    stack: AsyncExitStack,
    bench: ControllerBench,
    contenders: Sequence[Contender],
    zookeeper: EmbeddedZooKeeper,
    rounds: int,
) -> dict[str, Measured]:
    all_measured = {contender.name: Measured() for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            await bench.round(contender, zookeeper.connect_string, all_measured[contender.name], None)
    for contender in contenders:
        relay = await stack.enter_async_context(CountingRelay(zookeeper.port).running())
        await bench.round(contender, relay.address, all_measured[contender.name], relay)
    return all_measured


async def _controller_endpoint(zk: ZooKeeperClient) -> Endpoint:
    path = broker_id.path(BrokerId(CONTROLLER_ID))
    node = await zk.get(path)
    endpoint = broker_id.decode(path, node.data).endpoint(LISTENER)
    assert endpoint is not None
    return endpoint


# --- figures ---------------------------------------------------------------------------------------------------------


def _report(contender: Contender, measured: Measured) -> dict[str, Any]:
    return {
        "settings": contender.settings,
        "seconds": {name: _figures(samples) for name, samples in measured.seconds.items()},
        "cpu_seconds": {name: _figures(samples) for name, samples in measured.cpu_seconds.items()},
        "memory_mb": _figures(measured.memory_mb),
        "loop_held_longest_ms": measured.longest_hold_ms,
        "loop_busy_longest_ms": measured.longest_busy_ms,
        "zookeeper_operations": measured.operations,
        "events_written": measured.events_written,
        "control_requests": dict(sorted(measured.control_requests.items())),
        "control_bytes": measured.control_bytes,
        "load_average": measured.load_average,
    }


def _figures(samples: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(samples), 3),
        "least": round(min(samples), 3),
        "most": round(max(samples), 3),
    }


def _ratios(ours: Measured, theirs: Measured) -> dict[str, float]:
    """Their median divided by ours: how many times faster or smaller klamm is."""
    pairs = {name: (samples, theirs.seconds[name]) for name, samples in ours.seconds.items()}
    pairs["memory"] = (ours.memory_mb, theirs.memory_mb)
    return {name: round(statistics.median(b) / statistics.median(a), 1) for name, (a, b) in pairs.items()}


def bench(
    *,
    partitions: int,
    brokers: int,
    replication: int,
    rounds: int,
    against: str | None = None,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Calls `progress` with a line after each phase, because a large run takes a quarter of an hour."""
    with bytecode_at_hand():
        try:
            return asyncio.run(
                run(
                    partitions=partitions,
                    brokers=brokers,
                    replication=replication,
                    rounds=rounds,
                    against=against,
                    progress=progress,
                )
            )
        except ZooKeeperNotStarted as error:
            raise BenchFailed(str(error)) from None
