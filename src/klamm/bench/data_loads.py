"""The loads of `klamm bench data`: Kafka's performance tools, and `DataLoad.java` for what those do not offer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from klamm.bench.group_loading import loading_seconds
from klamm.bench.stubs import BenchFailed
from klamm.client.addresses import addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.testing.apache_kafka import ToolResult, run_tool

CLIENT_VERSION: Final = "2.5.1"
"""Both contenders meet the same client."""
DATA_LOAD: Final = str(Path(__file__).parent / "DataLoad.java")
HEAP_MB: Final = 512
"""What Kafka's scripts give these tools."""
TOOL_TIMEOUT: Final = 600.0
PARTITIONS: Final = 6
MEMBERS: Final = 3
PER_TRANSACTION: Final = 100
PER_SECOND: Final = 500
LATENCY_SECONDS: Final = 10

Sample = dict[str, float]


class LoadResult(NamedTuple):
    records: int
    figures: Sample


class Load(NamedTuple):
    name: str
    records: int
    work: Callable[[str, int], Awaitable[LoadResult]]
    reads: str = ""
    """The load that writes what this one reads."""

    async def run(self, bootstrap: str, scale: float) -> LoadResult:
        return await self.work(bootstrap, max(1_000, round(self.records * scale)))


async def _create(bootstrap: str, topic: str, replicas: int) -> None:
    async with ClusterClient(addresses(bootstrap)).running() as client:
        created = await Admin(client).create_topics({topic: NewTopic(PARTITIONS, replicas)})
        for error in created.values():
            if error is not None:
                raise error


async def _tool(main_class: str, *arguments: str) -> ToolResult:
    return await run_tool(CLIENT_VERSION, main_class, *arguments, timeout=TOOL_TIMEOUT, heap_mb=HEAP_MB, flags=())


# --- produce ---

_SENT: Final = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .* (\d+) ms 99th", re.MULTILINE)


def _produce(topic: str, replicas: int, size: int, *settings: str) -> Callable[[str, int], Awaitable[LoadResult]]:
    async def produce(bootstrap: str, records: int) -> LoadResult:
        await _create(bootstrap, topic, replicas)
        result = await _tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={bootstrap}", *settings),
        )
        last = _SENT.search(result.output)
        if last is None or int(last[1]) != records:
            raise BenchFailed(f"ProducerPerformance did not send {records} records: {result.output}{result.errors}")
        return LoadResult(records, {"records_per_second": float(last[2]), "p99_ms": float(last[3])})

    return produce


# --- consume ---


async def _consume(bootstrap: str, records: int) -> LoadResult:
    """Read the topic of the first load."""
    result = await _tool(
        "kafka.tools.ConsumerPerformance",
        *("--broker-list", bootstrap, "--topic", READ_TOPIC, "--messages", str(records), "--group", "bench-alone"),
        *("--timeout", "30000", "--hide-header"),
    )
    rate, consumed = consumption(result.output)
    if consumed < records:
        raise BenchFailed(f"ConsumerPerformance read only {consumed} of {records} records: {result.errors}")
    return LoadResult(records, {"records_per_second": rate})


def consumption(output: str) -> tuple[float, int]:
    """Records a second from the assignment of partitions on, and records, from the output of ConsumerPerformance.

    Its columns are start, end, MB, MB/s, records, records/s, milliseconds of joining, milliseconds of fetching, ...
    Version 2.5 counts the joining from 1970, so that its fetching time is short by the time of the start.

    >>> line = "2026-11-17 15:00:00:000, 2026-11-17 15:00:05:000, 9.5, 1.9, 2000, 400.0, 3000, 2000, 4.7, 1000.0"
    >>> consumption(line)
    (1000.0, 2000)
    """
    columns = [column.strip() for column in output.strip().splitlines()[-1].split(",")]
    consumed, fetching_ms = int(columns[4]), int(columns[7])
    if fetching_ms < 0:
        fetching_ms += round(datetime.strptime(columns[0], "%Y-%m-%d %H:%M:%S:%f").timestamp() * 1000)
    return consumed / max(fetching_ms, 1) * 1000, consumed


async def _data_load(load: str, bootstrap: str, topic: str, *numbers: int) -> Sample:
    result = await _tool(DATA_LOAD, load, bootstrap, topic, *map(str, numbers))
    return {key: float(value) for key, value in orjson.loads(result.output).items()}


async def _consume_in_group(bootstrap: str, records: int) -> LoadResult:
    found = await _data_load("group", bootstrap, READ_TOPIC, records, MEMBERS)
    rate = found["records"] / max(found["milliseconds"], 1) * 1000
    return LoadResult(records, {"records_per_second": rate, "join_ms": found["join_milliseconds"]})


# --- transactions, latency, groups ---


async def _transactions(bootstrap: str, records: int) -> LoadResult:
    await _create(bootstrap, "transactions", 3)
    found = await _data_load("transactions", bootstrap, "transactions", records, 100, PER_TRANSACTION)
    return LoadResult(records, {"records_per_second": records / found["milliseconds"] * 1000})


async def _latency(bootstrap: str, _records: int) -> LoadResult:
    """From the moment when a record is due to its arrival at the consumer, acks=all on three replicas. The rate and the
    time are fixed: the scale does not change them."""
    await _create(bootstrap, "latency", 3)
    found = await _data_load("latency", bootstrap, "latency", PER_SECOND, LATENCY_SECONDS)
    return LoadResult(
        int(found["records"]), {f"{name}_ms": found[f"{name}_microseconds"] / 1000 for name in ("p50", "p99")}
    )


async def _group_loading(bootstrap: str, groups: int) -> LoadResult:
    return LoadResult(groups, {"load_ms": await loading_seconds(bootstrap, READ_TOPIC, groups) * 1000})


READ_TOPIC: Final = "acks-1-100"
WARM_UP: Final = Load("warm-up", 500_000, _produce("warm-up", 3, 100, "acks=all"))
LOADS: Final = (
    Load("produce-acks-1-100B", 2_000_000, _produce(READ_TOPIC, 1, 100, "acks=1")),
    Load("produce-acks-1-1000B", 400_000, _produce("acks-1-1000", 1, 1000, "acks=1")),
    Load("produce-acks-all-100B", 1_000_000, _produce("acks-all-100", 3, 100, "acks=all")),
    Load("produce-acks-all-1000B", 200_000, _produce("acks-all-1000", 3, 1000, "acks=all")),
    Load("produce-lz4-100B", 1_000_000, _produce("lz4", 3, 100, "acks=all", "compression.type=lz4", "linger.ms=5")),
    Load("consume", 2_000_000, _consume, reads="produce-acks-1-100B"),
    Load("consume-group-of-3", 2_000_000, _consume_in_group, reads="produce-acks-1-100B"),
    Load("transactions", 100_000, _transactions),
    Load("latency", PER_SECOND * LATENCY_SECONDS, _latency),
    Load("load-groups", 10_000, _group_loading, reads="produce-acks-1-100B"),
)
