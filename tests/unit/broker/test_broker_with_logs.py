"""One broker with real logs: what readers see of transactions, old message formats, and log directories."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from klamm.log.log import Log
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.batch import iter_batches
from klamm.wire.messages import decode_response, request_class
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import config as config_znode

from .coordinators.transactions.whole_broker import CLIENT, WholeBroker, running_broker

TP = TopicPartition("orders", 0)
PRODUCER = (7, 0)
FOLLOWER = BrokerId(2)


@pytest.fixture
async def broker(tmp_path: Path, zk: Any) -> AsyncIterator[WholeBroker]:
    """Two log directories; the topic `orders` has a follower, which the test plays."""
    async with running_broker(tmp_path / "one", tmp_path / "two", zk=zk) as running:
        await running.lead(TP.topic, isr=2)
        yield running


def replicated(broker: WholeBroker, end: int) -> None:
    broker.node.replicas.follower_fetched(TP, FOLLOWER, end, 0)


async def write(broker: WholeBroker, *values: bytes, sequence: int = 0) -> None:
    assert await broker.produce(TP, *values, producer=PRODUCER, sequence=sequence, acks=1) == 0


async def seen(broker: WholeBroker, **wait: int) -> tuple[bool, int]:
    """Whether a read-committed fetch returns records, and the last stable offset."""
    found = await broker.fetch(TP, committed=True, **wait)
    assert found.error_code == 0
    return bool(found.records), found.last_stable_offset


# --- transactions ---


@pytest.mark.case("RPM-04")
async def test_a_transaction_is_readable_once_its_marker_is_replicated(broker: WholeBroker) -> None:
    await write(broker, b"a", b"b", b"c")
    replicated(broker, 3)
    uncommitted = await broker.fetch(TP, committed=False)
    assert (bool(uncommitted.records), uncommitted.high_watermark) == (True, 3)
    assert await seen(broker) == (False, 0)
    assert await seen(broker, max_wait_ms=30) == (False, 0)

    marker = asyncio.create_task(broker.write_markers(PRODUCER, [TP]))
    await broker.settled(lambda: broker.log(TP).log_end_offset == 4)
    assert await seen(broker, max_wait_ms=30) == (False, 0), "the marker is in this log alone"

    waiting = asyncio.create_task(broker.fetch(TP, committed=True, max_wait_ms=60_000))
    await broker.settled(lambda: len(broker.node.replicas.waiting_fetches))
    replicated(broker, 4)
    assert await marker == [0]
    async with asyncio.timeout(5):
        found = await waiting
    assert (found.last_stable_offset, list(found.aborted_transactions)) == (4, [])
    assert bytes(found.records) == bytes(broker.log(TP).read(0, 1 << 20, upper_bound=4, at_least_one=False).records)


@pytest.mark.case("RPM-05")
async def test_an_aborted_transaction_is_named_beside_its_records(broker: WholeBroker) -> None:
    await write(broker, b"a", b"b", b"c")
    marker = asyncio.create_task(broker.write_markers(PRODUCER, [TP], commit=False))
    await broker.settled(lambda: broker.log(TP).log_end_offset == 4)
    replicated(broker, 4)
    assert await marker == [0]
    found = await broker.fetch(TP, committed=True, max_wait_ms=30, min_bytes=100_000)
    assert (found.error_code, found.last_stable_offset) == (0, 4)
    assert [header.base_offset for _, header in iter_batches(memoryview(found.records))] == [0, 3]
    assert [(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions] == [(PRODUCER[0], 0)]
    uncommitted = await broker.fetch(TP, committed=False)
    assert (bytes(uncommitted.records), uncommitted.aborted_transactions) == (bytes(found.records), None)


# --- message formats ---


def old_message(value: bytes) -> bytes:
    body = struct.pack(">bbqii", 1, 0, 77, -1, len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.case("PAR-02")
async def test_leader_epochs_are_stored_whatever_the_message_format(tmp_path: Path, zk: Any) -> None:
    """A log without epochs could only be cut at the high watermark, which loses records (KIP-101)."""
    zk.put(config_znode.topic_path(TP.topic), config_znode.encode({"message.format.version": "0.10.2"}))
    async with running_broker(tmp_path, zk=zk) as broker:
        await broker.lead(TP.topic, epoch=8)
        assert broker.log(TP).epochs.end_offset_for(8) == (8, 0)
        chunks = encode_produce(2, acks=1, timeout_ms=0, entries=[(TP, old_message(b"v"))])
        answer = await broker.node.handle(
            CLIENT, RequestHeader(ApiKey.PRODUCE, 2, 1, "old"), memoryview(b"".join(chunks))
        )
        assert answer is not None
        (result,) = decode_response(ApiKey.PRODUCE, 2, b"".join(answer)).responses[0].partition_responses
        assert result.error_code == 0
        stored = memoryview(broker.log(TP).read(0, 1 << 20, upper_bound=1, at_least_one=False).records)
        ((_, header),) = iter_batches(stored)
        assert (header.magic, header.leader_epoch) == (2, 8)
        assert broker.log(TP).epochs.end_offset_for(LeaderEpoch(8)) == (8, 1)


# --- log directories ---


def replace_by_file(directory: Path) -> None:
    """At once: the broker writes into the directory at any time."""
    directory.rename(directory.with_suffix(".away"))
    directory.write_text("not a directory any more")


@pytest.mark.case("LDF-02")
@pytest.mark.parametrize("finder", ["a new segment", "the checkpoint of high watermarks"])
async def test_a_produce_that_meets_a_failed_directory(tmp_path: Path, zk: Any, finder: str) -> None:
    zk.put(config_znode.topic_path(TP.topic), config_znode.encode({"segment.bytes": "100"}))

    async def produced(version: int) -> int:
        return await broker.produce(TP, b"x" * 30, transactional_id=None, transactional=False, acks=1, version=version)

    async with running_broker(tmp_path / "one", tmp_path / "two", zk=zk) as broker:
        await broker.lead(TP.topic, partitions=2)
        assert await produced(8) == 0
        replace_by_file(Path(broker.log(TP).directory).parent)
        if finder != "a new segment":
            await broker.node.replicas.logs.checkpoint_high_watermarks()
        assert await produced(8) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produced(4) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await produced(3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        other = TopicPartition(TP.topic, 1)
        assert await broker.produce(other, b"x", transactional_id=None, transactional=False, acks=1) == 0


async def alter(broker: WholeBroker, name: TopicPartition, path: Path) -> int:
    cls = request_class(ApiKey.ALTER_REPLICA_LOG_DIRS).AlterReplicaLogDir
    topic = cls.AlterReplicaLogDirTopic(name=name.topic, partitions=[name.partition])
    answer = await broker.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, dirs=[cls(path=str(path), topics=[topic])])
    return int(answer.results[0].partitions[0].error_code)


@pytest.mark.case("LDF-05")
@pytest.mark.parametrize("wished", ["one", "two"])
async def test_a_directory_is_chosen_before_the_topic_exists_and_afterwards(
    tmp_path: Path, zk: Any, wished: str
) -> None:
    def home() -> Path:
        log: Log = broker.log(TP)
        return Path(log.directory).parent

    first = tmp_path / wished
    second = tmp_path / {"one": "two", "two": "one"}[wished]
    async with running_broker(tmp_path / "one", tmp_path / "two", zk=zk) as broker:
        assert await alter(broker, TP, first) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.lead(TP.topic)
        assert home() == first
        assert await broker.produce(TP, b"kept", transactional_id=None, transactional=False) == 0
        assert await alter(broker, TP, tmp_path / "elsewhere") == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(broker, TP, second) == ErrorCode.NONE
        await broker.settled(lambda: home() == second)
        assert [record.value for record in broker.records(TP)] == [b"kept"]
