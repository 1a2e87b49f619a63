"""Slow consumers and idle connections beside acks=all: memory, descriptors and tasks of the brokers stay flat.

Seconds and one broker in `make test`; with `KLAMM_SCALE=full` ten minutes, three brokers that replicate everything, 200
slow consumers and 1,000 idle connections. The figures of each broker at the start, in the middle and at the end go to
the output, and so do the latencies of the first and the last minute.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.model.ids import TopicPartition
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.runtime import raise_descriptor_limit
from klamm.testing.cluster import AsyncKlammCluster, running_cluster
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import FetchPartition, encode_follower_request
from klamm.wire.messages import decode_response
from klamm.wire.produce import encode_request
from klamm.wire.records import Record, build_batch
from klamm.wire.server_connection import RequestHeader, request_head

pytestmark = pytest.mark.timeout(1800 if os.environ.get("KLAMM_SCALE") == "full" else 300)

RECORDS_PER_SECOND = 500
COMPARED_SECONDS = 60
FILLED_BYTES = 900_000
GROWTH_MB = 20.0
"""What the memory may grow after the first half; the responses are in the budget by then."""


class Footprint(NamedTuple):
    memory_mb: float
    descriptors: int
    tasks: int

    @classmethod
    def of(cls, pid: int, metrics_url: str) -> Footprint:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        with urllib.request.urlopen(metrics_url, timeout=10) as answer:
            found = re.search(r"^klamm_server_eventloop_taskcount ([\d.]+)", answer.read().decode(), re.MULTILINE)
        assert found is not None
        return cls(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir(f"/proc/{pid}/fd")), int(float(found[1])))


async def slow_consumer(host: str, port: int, partitions: int) -> None:
    """Asks for everything, again and again, and reads a kilobyte ten times a second."""
    names = [TopicPartition("filled", n) for n in range(partitions)]
    wanted = [FetchPartition(name, 0, 1 << 20) for name in names]
    body = encode_follower_request(replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=52_428_800, partitions=wanted)
    head = request_head(RequestHeader(ApiKey.FETCH, 11, 1, "slow"), sum(map(len, body)))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(sock, (host, port))
        await loop.sock_sendall(sock, b"".join([head, *body]))
        while await loop.sock_recv(sock, 1024):
            await asyncio.sleep(0.1)
    finally:
        sock.close()


async def produce(connection: BrokerConnection, name: TopicPartition, seconds: float) -> list[float]:
    """acks=all at a steady rate; returns the seconds that each record took."""
    batch = build_batch([Record(key=None, value=bytes(100), timestamp=1)])
    chunks = encode_request(8, acks=-1, timeout_ms=30_000, entries=[(name, batch)])
    took: list[float] = []
    begin = time.monotonic()

    async def one(due: float) -> None:
        answer = decode_response(ApiKey.PRODUCE, 8, await connection.send(ApiKey.PRODUCE, 8, chunks))
        assert answer.responses[0].partition_responses[0].error_code == 0
        took.append(time.monotonic() - due)

    async with asyncio.TaskGroup() as sending:
        for number in range(int(seconds * RECORDS_PER_SECOND)):
            due = begin + number / RECORDS_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sending.create_task(one(due))
    return took


def percentile(took: list[float], percent: int) -> float:
    """In milliseconds."""
    return sorted(took)[len(took) * percent // 100] * 1000


class Brokers:
    """A connection to each broker, and what each of them uses."""

    def __init__(self, cluster: AsyncKlammCluster) -> None:
        self._cluster = cluster
        addresses = [address.rsplit(":", 1) for address in cluster.bootstrap.split(",")]
        self.addresses = [(host, int(port)) for host, port in addresses]
        self._connections: dict[int, BrokerConnection] = {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Brokers]:
        async with AsyncExitStack() as stack:
            for broker, (host, port) in zip(self._cluster.broker_ids, self.addresses, strict=True):
                connection = BrokerConnection(AsyncioNetwork(), host, port, "producer", SystemClock())
                await connection.connect()
                stack.push_async_callback(connection.close)
                self._connections[broker] = connection
            yield self

    async def leader_of(self, name: TopicPartition) -> BrokerConnection:
        return self._connections[await self._cluster.leader_of(name.topic, name.partition)]

    async def footprints(self) -> list[Footprint]:
        cluster = self._cluster
        return [
            await asyncio.to_thread(Footprint.of, cluster.pid(broker), cluster.metrics_url(broker))
            for broker in cluster.broker_ids
        ]


async def fill(brokers: Brokers, partitions: int) -> None:
    batch = build_batch([Record(key=None, value=bytes(FILLED_BYTES), timestamp=1)])
    for n in range(partitions):
        name = TopicPartition("filled", n)
        chunks = encode_request(8, acks=-1, timeout_ms=30_000, entries=[(name, batch)])
        await (await brokers.leader_of(name)).request(ApiKey.PRODUCE, 8, chunks, timeout=30)


async def test_slow_consumers_cost_a_bounded_amount(
    scaled: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    slow_count, idle_count, seconds = scaled(20, 200), scaled(100, 1_000), scaled(8, 600)
    count, budget, steady = scaled(1, 3), 64 << 20, TopicPartition("steady", 0)
    raise_descriptor_limit()
    properties = {"klamm.response.bytes.max": budget}
    async with running_cluster(brokers=count, http=True, properties=properties) as cluster:
        await cluster.create_topic("filled", 50, count)
        await cluster.create_topic("steady", 1, count)
        async with Brokers(cluster).connected() as brokers:
            await fill(brokers, 50)
            before = await brokers.footprints()
            addresses = cycle(brokers.addresses)
            idle = [await asyncio.open_connection(*next(addresses)) for _ in range(idle_count)]
            slow = [asyncio.create_task(slow_consumer(*next(addresses), 50)) for _ in range(slow_count)]
            leader = await brokers.leader_of(steady)
            took = await produce(leader, steady, seconds / 2)
            half = await brokers.footprints()
            took += await produce(leader, steady, seconds / 2)
            after = await brokers.footprints()
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            for _, writer in idle:
                writer.close()

    compared = min(COMPARED_SECONDS, seconds // 2) * RECORDS_PER_SECOND
    with capsys.disabled():
        print(
            f"\n{count} brokers, {slow_count} slow consumers, {idle_count} idle connections, "
            f"{RECORDS_PER_SECOND} records/s, {seconds} s"
        )
        for name, seen in (("start", before), ("middle", half), ("end", after)):
            for broker, one in enumerate(seen, 1):
                figures = f"{one.memory_mb:8.0f} MB {one.descriptors:6d} descriptors {one.tasks:6d} tasks"
                print(f"{name:8} broker {broker} {figures}")
        for name, some in (("start", took[:compared]), ("end", took[-compared:]), ("all", took)):
            print(f"{name:8} acks=all: p50 {percentile(some, 50):.1f} ms, p99 {percentile(some, 99):.1f} ms")
    assert len(took) == int(seconds / 2 * RECORDS_PER_SECOND) * 2, "every record was acknowledged"
    for was, then, now in zip(before, half, after, strict=True):
        assert then.memory_mb - was.memory_mb < budget / 1e6 + GROWTH_MB, "not 50 MB for each consumer"
        assert now.memory_mb - then.memory_mb < GROWTH_MB
        assert now.descriptors <= then.descriptors + 5
        assert now.tasks <= then.tasks + 5
