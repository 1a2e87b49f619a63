"""Mutated frames of every API and version against a running broker, on its client listener and on its internal one.

Each frame is answered, or closes its connection with one line in the log. The process lives, serves, and keeps nothing.
`make test` sends 20,000 frames, `make soak` 1,000,000; KLAMM_FUZZ_FRAMES and KLAMM_FUZZ_SEED change that. Frames are
pipelined on several connections. The answers show which frame ended its connection, and those after it are sent again
on the next connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import struct
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from klamm.broker.handlers.dispatch import served
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.frames import CORRELATION, FuzzFrame, FuzzFrames, Scene

SEED = int(os.environ.get("KLAMM_FUZZ_SEED", "20"))
CONNECTIONS = 16
PIPELINED = 24
PATIENCE = 1.0
"""Seconds without an answer after which a frame counts as waiting, in a long poll that it asked for."""
CLOSING = re.compile(r"closing connection of 127\.0\.0\.1:(\d+): ")
SENTINEL_CORRELATION = 0x7FFFFFFF
SENTINEL = struct.pack(">ihhih", 10, 18, 0, SENTINEL_CORRELATION, -1)
"""ApiVersions. Its answer shows that everything before it was answered."""
MEMORY_GROWTH_BYTES = 64 << 20
TASKS_OF_ITS_OWN = 2
"""Time for the periodic writes and checks of a broker."""
LOOK_EVERY = 50_000
"""Frames between two checks of the log. A failure is reported with the frames sent on its connection."""
TALKED_ABOUT = "orders"
"""The topic in the seeds. A frame may delete it by chance; then it is created again."""
UNTOUCHED = "untouched"
"""A topic that is in no seed: its records must stay."""


class Tally:
    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], Counter[str]] = {}
        self.closed_by_port: Counter[int] = Counter()
        self.left_by_port: Counter[int] = Counter()
        self.sent_by_port: dict[int, list[FuzzFrame]] = {}

    def end(self, frame: FuzzFrame, how: str) -> None:
        self.ends.setdefault((frame.api, frame.version), Counter())[how] += 1

    def total(self, how: str) -> int:
        return sum(ends[how] for ends in self.ends.values())

    def check(self, said: str) -> None:
        """Lines about connections that the broker closed. It may have closed first some that the test closed."""
        assert "Traceback" not in said, self.explain(said)
        lines = Counter(int(port) for port in CLOSING.findall(said))
        for port in sorted(lines.keys() | self.closed_by_port.keys()):
            closed, left = self.closed_by_port[port], self.left_by_port[port]
            assert closed <= lines[port] <= closed + left, f"port {port}: {lines[port]} lines, {closed} closed"

    def explain(self, said: str) -> str:
        """The first failure in the log and the frames that were sent on its connection, for a replay."""
        at = said.index("Traceback")
        start = said.rfind("\n[", 0, at) + 1
        first = said[start : at + 4000]
        peer = re.search(r"127\.0\.0\.1:(\d+)", first)
        sent = self.sent_by_port.get(int(peer[1]), []) if peer else []
        frames = "\n".join(f"{frame.api} {frame.version} {frame.mutation}: {frame.data.hex()}" for frame in sent)
        return f"seed {SEED}\n{first}\nframes of that connection:\n{frames}"

    def print(self, listener: str) -> None:
        words = ("answered", "closed", "silent", "waits", "incomplete")
        print(f"\nlistener {listener}, seed {SEED}")
        print(f"{'API':<28}{'version':>8}{'frames':>9}" + "".join(f"{word:>12}" for word in words))
        for (api, version), ends in self.ends.items():
            row = "".join(f"{ends[word]:>12}" for word in words)
            print(f"{api:<28}{version:>8}{sum(ends.values()):>9}{row}")
        print(f"{'all':<28}{'':>8}{sum(map(Counter.total, self.ends.values())):>9}", end="")
        print("".join(f"{self.total(word):>12}" for word in words))


class Wire(asyncio.Protocol):
    """One connection: answers by correlation id, and whether the other side has closed it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.answered: list[int] = []
        self.is_closed = False
        self.port = 0
        self._news: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        # Close with a reset: with so many connections no port may wait for old segments.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size, correlation = struct.unpack_from(">ii", self._buffer)
            if len(self._buffer) < 4 + size:
                break
            self.answered.append(correlation)
            del self._buffer[: 4 + size]
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def until(self, done: Callable[[], bool], patience: float) -> None:
        """Wait until `done`, until the connection is closed, or until nothing has come for that long."""
        while not done() and not self.is_closed:
            self._news = asyncio.get_running_loop().create_future()
            known = len(self._buffer), len(self.answered)
            await asyncio.wait((self._news,), timeout=patience)
            if not self._news.done() and known == (len(self._buffer), len(self.answered)):
                return


class Fuzzer:
    def __init__(self, port: int, frames: FuzzFrames) -> None:
        self._port = port
        self._frames = frames
        self._left = 0
        self.tally = Tally()

    async def run(self, count: int) -> None:
        self._left = count
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(self._work())

    def _take(self, todo: deque[FuzzFrame]) -> list[FuzzFrame]:
        """At most one frame has a wrong size, and it comes last, because no frame after it can be recognized."""
        batch: list[FuzzFrame] = []
        while len(batch) < PIPELINED and (todo or self._left):
            if not todo:
                self._left -= 1
                todo.append(self._frames.make())
            batch.append(todo.popleft())
            if not batch[-1].is_aligned:
                break
        return batch

    async def _work(self) -> None:
        wire: Wire | None = None
        todo: deque[FuzzFrame] = deque()
        while batch := self._take(todo):
            if wire is None:
                _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", self._port)
            again = await self._send(wire, batch)
            todo.extendleft(reversed(again))
            if wire.is_closed or wire.transport.is_closing():
                wire = None
        if wire is not None:
            wire.transport.abort()

    async def _send(self, wire: Wire, batch: list[FuzzFrame]) -> list[FuzzFrame]:
        """Return the frames that the broker did not see."""
        self.tally.sent_by_port[wire.port] = list(batch)
        liar = batch.pop() if not batch[-1].is_aligned else None
        wire.answered.clear()
        sent = [_numbered(frame, number) for number, frame in enumerate(batch)]
        wire.transport.write(b"".join([*sent, SENTINEL]))
        await wire.until(lambda: SENTINEL_CORRELATION in wire.answered, PATIENCE)
        answered = set(wire.answered)
        if SENTINEL_CORRELATION in answered:
            for number, frame in enumerate(batch):
                self.tally.end(frame, "answered" if number in answered else "silent")
            if liar is not None:
                await self._send_liar(wire, liar)
            return []
        last = max(answered, default=-1)
        for number, frame in enumerate(batch[: last + 1]):
            self.tally.end(frame, "answered" if number in answered else "silent")
        if last + 1 < len(batch):
            self.tally.end(batch[last + 1], "closed" if wire.is_closed else "waits")
        self._ended(wire)
        return batch[last + 2 :] + ([liar] if liar is not None else [])

    async def _send_liar(self, wire: Wire, frame: FuzzFrame) -> None:
        wire.transport.write(frame.data)
        if not frame.is_incomplete:
            await wire.until(lambda: False, 0.2)
        self.tally.end(frame, "closed" if wire.is_closed else "incomplete")
        self._ended(wire)

    def _ended(self, wire: Wire) -> None:
        ports = self.tally.closed_by_port if wire.is_closed else self.tally.left_by_port
        ports[wire.port] += 1
        wire.transport.abort()


def _numbered(frame: FuzzFrame, number: int) -> bytes:
    data = bytearray(frame.data)
    data[CORRELATION] = struct.pack(">i", number)
    return bytes(data)


# --- the broker ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    properties = {
        "auto.create.topics.enable": "false",  # a mutated name in a Metadata request would create a topic
        "klamm.max.partitions.per.topic": "20",
        "log.flush.offset.checkpoint.interval.ms": "600000",
    }
    with running_cluster(tmp_path_factory.mktemp("fuzz"), brokers=1, http=True, properties=properties) as started:
        started.create_topic(UNTOUCHED, replication_factor=1)
        yield started


def scrape(cluster: KlammCluster) -> dict[str, float]:
    with urllib.request.urlopen(cluster.metrics_url(1), timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples: Counter[str] = Counter()
    for family in families:
        for sample in family.samples:
            samples[sample.name] += sample.value
    return samples


def normal_client_works(cluster: KlammCluster, *texts: bytes) -> None:
    """Write the last of `texts`, and read them all."""
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    try:
        producer.send(UNTOUCHED, texts[-1], partition=0).get(timeout=30)
    finally:
        producer.close()
    partition = TopicPartition(UNTOUCHED, 0)
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, consumer_timeout_ms=30_000)
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        assert tuple(record.value for record, _ in zip(consumer, texts, strict=False)) == texts
    finally:
        consumer.close()


def fuzz(cluster: KlammCluster, port: int, listener: str, count: int, *, epoch: int, creates_topic: bool) -> None:
    frames = FuzzFrames(served(), Scene(TALKED_ABOUT, "ghost", 1, epoch), random.Random(f"{SEED} {listener}"))
    fuzzer = Fuzzer(port, frames)
    started, said_before = time.monotonic(), len(cluster.log_text(1))
    for sent in range(0, count, LOOK_EVERY):
        if creates_topic and not cluster.partitions(TALKED_ABOUT):
            cluster.create_topic(TALKED_ABOUT, partitions=2, replication_factor=1)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(fuzzer.run(min(LOOK_EVERY, count - sent)))
        fuzzer.tally.check(cluster.log_text(1)[said_before:])
    seconds = time.monotonic() - started
    fuzzer.tally.print(listener)
    print(f"{count} frames in {seconds:.1f} s: {count / seconds:.0f}/s")
    assert {(api.name, version) for api, version in frames.kinds} == set(fuzzer.tally.ends)
    assert sum(map(Counter.total, fuzzer.tally.ends.values())) == count


def settled(cluster: KlammCluster, what: str, at_most: float) -> dict[str, float]:
    deadline = time.monotonic() + 60
    while (samples := scrape(cluster))[what] > at_most:
        assert time.monotonic() < deadline, f"{what} is {samples[what]}, it was {at_most}"
        time.sleep(0.2)
    return samples


def frames_each(scaled: Callable[[int, int], int]) -> int:
    return int(os.environ.get("KLAMM_FUZZ_FRAMES") or scaled(20_000, 1_000_000)) // 2


@pytest.mark.timeout(3600)
def test_on_the_clients_listener(cluster: KlammCluster, scaled: Callable[[int, int], int]) -> None:
    normal_client_works(cluster, b"before")
    before = scrape(cluster)
    port = int(cluster.bootstrap.rpartition(":")[2])
    fuzz(cluster, port, "CLIENT", frames_each(scaled), epoch=1, creates_topic=True)
    connections = "kafka_server_socket_server_metrics_connection_count"
    after = settled(cluster, connections, before[connections])
    after = settled(cluster, "klamm_process_taskcount", before["klamm_process_taskcount"] + TASKS_OF_ITS_OWN)
    growth = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    print(f"memory grew by {growth / 2**20:.1f} MiB, tasks {after['klamm_process_taskcount']:.0f}")
    assert growth < MEMORY_GROWTH_BYTES
    normal_client_works(cluster, b"before", b"after")


@pytest.mark.timeout(3600)
def test_on_the_listener_of_the_brokers(cluster: KlammCluster, scaled: Callable[[int, int], int]) -> None:
    """Here the broker obeys control requests, whatever they order. Its state may become absurd, but it lives, and
    after a restart it is back in the cluster with its data."""
    before = scrape(cluster)
    port = cluster.internal_port(1)
    fuzz(cluster, port, "INTERNAL", frames_each(scaled), epoch=2**31 - 1, creates_topic=False)
    connections = "kafka_server_socket_server_metrics_connection_count"
    after = settled(cluster, connections, before[connections])
    growth = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    print(f"memory grew by {growth / 2**20:.1f} MiB, tasks {after['klamm_process_taskcount']:.0f}")
    assert growth < MEMORY_GROWTH_BYTES
    strangers = [path for path in Path(cluster.directory(1)).parent.iterdir() if "ghost" in path.name]
    assert strangers == [], "nothing is written outside of the data directory"
    cluster.stop(1)
    cluster.start(1)
    cluster.leader_of(UNTOUCHED, 0)
    normal_client_works(cluster, b"before", b"after", b"after the restart")
    assert "Traceback" not in cluster.log_text(1)
