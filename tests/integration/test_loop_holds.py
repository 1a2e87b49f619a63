"""Nothing holds the event loop for longer than 50 ms of the thread's CPU time, however wide a request is (design D18).

One broker in this process, with real logs, gets each API at its worst legal size. A task that runs in every turn of the
loop measures the longest turn. CPU time counts, since other processes may use the machine. The table goes to the output
(`pytest -s`); `KLAMM_SCALE=full` uses 10,000 partitions and frames of 16 MB.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import os
import random
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from klamm.broker.broker import BrokerNode
from klamm.broker.handlers.dispatch import DATA_HANDLERS, ENTRIES_MAX, MESSAGE_HANDLERS, served
from klamm.broker.handlers.slices import in_slices
from klamm.broker.metrics import LOGS_MAX
from klamm.log.disk import FileDisk
from klamm.log.log import EPOCHS_FLUSH_MS
from klamm.log.log_manager import LogManager
from klamm.log.validation import BATCHES_MAX
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, PartitionOrder, Sender, StopOrder
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Buffer, Ports
from klamm.model.requests import ANONYMOUS, ClientConnection, RequestContext
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.security.authorizer import AllowAll
from klamm.security.quotas import ClientQuotas
from klamm.server.garbage import GarbageCollection
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.prometheus import exposition
from klamm.testing.zookeeper import InMemoryZooKeeper
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.batch import pack_batch, read_header
from klamm.wire.compression import Codec, compress
from klamm.wire.control import encoders
from klamm.wire.errors import ProtocolError
from klamm.wire.fetch import FetchPartition, decode_follower_response, encode_follower_request
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.records import Record, build_batch
from klamm.wire.schema import Field
from klamm.wire.server_connection import RequestHeader, ServerConnection, request_head
from klamm.zookeeper.znodes import topic
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

from .widest import widest

pytestmark = pytest.mark.timeout(3600 if os.environ.get("KLAMM_SCALE") == "full" else 300)

LIMIT_S = 0.050
PER_TOPIC = 100
CHUNK_BYTES = 256 << 10
"""What uvloop reads at once."""
CLIENT = RequestContext(ANONYMOUS, "CLIENT", "test", "127.0.0.1:1", False)
INTERNAL = CLIENT._replace(listener="INTERNAL", privileged=True)
ME, OTHER = BrokerId(1), BrokerId(2)
BOTH = (ME, OTHER)
INTERNAL_NAMES = [TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)]


class IdleController:
    """Has nothing to do: what a real one does is its own budget."""

    is_active = True

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        return []

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        return dict.fromkeys(targets)

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        return {name: Assignment(BOTH) for name in partitions or ()}

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, unclean: UncleanElection
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        return dict.fromkeys(partitions or (), ME)


class NoEvents:
    def emit(self, records: Any) -> None: ...


class Holds:
    """The longest turn of the loop since the last look, in seconds of this thread's CPU time."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - self._last)
            self._last = now

    async def read(self) -> float:
        for _ in range(2):  # the task must have had its turn
            await asyncio.sleep(0)
        return self.longest

    def reset(self) -> None:
        self._last, self.longest = time.thread_time(), 0.0


class Wide(NamedTuple):
    """One broker that leads many partitions."""

    node: BrokerNode
    names: list[TopicPartition]
    frame_bytes: int
    holds: Holds
    metrics: MetricsRegistry

    async def longest(
        self, key: ApiKey, version: int, chunks: Sequence[bytes], context: RequestContext
    ) -> tuple[float, Sequence[Buffer] | None]:
        """Receives the request as a listener does, and handles it. A refused request counts too."""
        head = RequestHeader(key, version, 1, "test")
        frame = b"".join([request_head(head, sum(map(len, chunks))), *chunks])
        wire = ServerConnection(256 << 20, recordless_bytes_max=256 << 20)
        self.holds.reset()
        for start in range(0, len(frame), CHUNK_BYTES):
            wire.feed(frame[start : start + CHUNK_BYTES])
            await asyncio.sleep(0)
        request = wire.next_request()
        assert request is not None
        answer = None
        try:
            answer = await self.node.handle(
                context._replace(connection=ClientConnection()), request.header, request.body
            )
        except ProtocolError:
            pass
        return await self.holds.read(), answer


@pytest.fixture
async def garbage_as_in_a_server() -> AsyncIterator[None]:
    gc.collect()
    gc.freeze()  # as after the imports of a server
    async with GarbageCollection().running():
        yield
    gc.unfreeze()


@pytest.fixture
async def wide(tmp_path: Path, scaled: Callable[[int, int], int], garbage_as_in_a_server: None) -> AsyncIterator[Wide]:
    names = [TopicPartition(f"topic-{n // PER_TOPIC}", n % PER_TOPIC) for n in range(scaled(500, 10_000))]
    zk = InMemoryZooKeeper(session_timeout_ms=18_000)
    for path in PERSISTENT_PATHS:
        zk.put(path)
    for name in INTERNAL_NAMES:
        zk.put(topic.path(name.topic), topic.encode({0: Assignment((ME,))}))
    config = BrokerConfig(
        broker_id=1,
        log_dirs=(str(tmp_path),),
        inter_broker_listener_name="INTERNAL",
        auto_create_topics_enable=False,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        transaction_state_log_min_isr=1,
        group_initial_rebalance_delay_ms=3_000,
    )
    async with AsyncExitStack() as stack:
        disk, clock = FileDisk(), SystemClock()
        stack.callback(disk.close)
        logs = LogManager(disk, clock, config, random.Random(1))
        logs.directories.lock()
        metrics = MetricsRegistry()
        node = BrokerNode(
            broker_id=ME,
            cluster_id="cluster",
            config=config,
            ports=Ports(clock, AsyncioNetwork(), disk, random.Random(2)),
            zk=zk,
            logs=logs,
            events=NoEvents(),
            metrics=metrics,
            authorizer=AllowAll(),
            quotas=ClientQuotas(clock),
            controller=IdleController(),
        )
        await node.load_logs()
        await stack.enter_async_context(logs.running())
        await stack.enter_async_context(node.running())
        holds = Holds()
        ticking = asyncio.create_task(holds.run())
        stack.callback(ticking.cancel)
        yield Wide(node, names, scaled(2 << 20, 16 << 20), holds, metrics)


SENDER = Sender(OTHER, ControllerEpoch(1), BrokerEpoch(-1))


def metadata(names: Sequence[TopicPartition]) -> MetadataUpdate:
    state = PartitionMetadata(ME, LeaderEpoch(0), BOTH, BOTH, ())
    topics: dict[str, list[tuple[int, PartitionMetadata]]] = {}
    for name in names:
        topics.setdefault(name.topic, []).append((name.partition, state))
    listeners = ("CLIENT", "INTERNAL")
    brokers = [Broker(b, tuple(Endpoint(name, f"host{b}", 9090 + b) for name in listeners)) for b in BOTH]
    return MetadataUpdate(SENDER, brokers, list(topics.items()))


def orders(
    names: Sequence[TopicPartition], replicas: tuple[BrokerId, ...] = BOTH, leader: BrokerId = ME, epoch: int = 0
) -> list[PartitionOrder]:
    state = LeaderAndIsr(leader, LeaderEpoch(epoch), replicas, ControllerEpoch(1))
    return [PartitionOrder(name, state, 0, Assignment(replicas), epoch == 0) for name in names]


def grouped(names: Sequence[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for name in names:
        topics.setdefault(name.topic, []).append(name.partition)
    return list(topics.items())


def fetch(
    names: Sequence[TopicPartition],
    *,
    replica: int = -1,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    max_wait_ms: int = 1,
) -> Any:
    return encode_follower_request(
        replica_id=replica,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        partitions=[FetchPartition(name, offset, max_bytes, 0 if replica >= 0 else -1, 0) for name in names],
    )


def list_offsets(names: Sequence[TopicPartition], timestamp: int) -> list[bytes]:
    cls = request_class(ApiKey.LIST_OFFSETS)
    entry = cls.ListOffsetsTopic.ListOffsetsPartition
    topics = [
        cls.ListOffsetsTopic(
            name=topic,
            partitions=[entry(partition_index=p, timestamp=timestamp, current_leader_epoch=-1) for p in partitions],
        )
        for topic, partitions in grouped(names)
    ]
    return [encode_request(cls(replica_id=-1, isolation_level=0, topics=topics), 5)]


def epochs(names: Sequence[TopicPartition]) -> list[bytes]:
    cls = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topic_class = cls.OffsetForLeaderTopic
    topics = [
        topic_class(
            topic=topic,
            partitions=[
                topic_class.OffsetForLeaderPartition(partition=p, current_leader_epoch=-1, leader_epoch=0)
                for p in partitions
            ],
        )
        for topic, partitions in grouped(names)
    ]
    return [encode_request(cls(replica_id=-1, topics=topics), 3)]


def named_topics(key: ApiKey, version: int, names: Sequence[str], **fields: Any) -> list[bytes]:
    cls = request_class(key)
    return [encode_request(cls(topics=[cls.MetadataRequestTopic(name=name) for name in names], **fields), version)]


def produce(names: Sequence[TopicPartition], value_bytes: int, acks: int = 1) -> list[bytes]:
    batch = build_batch([Record(key=None, value=bytes(value_bytes), timestamp=1)])
    return encode_produce(8, acks=acks, timeout_ms=1000, entries=[(name, batch) for name in names])


def bomb(frame_bytes: int) -> bytes:
    """A few hundred bytes that claim to be as many records as a batch may decompress to."""
    record = bytes.fromhex("0e 00 00 00 02 6b 01 00")
    count = frame_bytes // len(record)
    header = read_header(build_batch([Record(key=b"k", value=b"v", timestamp=1)]))
    changed = {"attributes": int(Codec.ZSTD), "count": count, "last_offset_delta": count - 1}
    return pack_batch(header._replace(**changed), compress(Codec.ZSTD, record * count))


def old_set(frame_bytes: int) -> bytes:
    """A compressed set of messages of format 1."""

    def message(value: bytes, attributes: int) -> bytes:
        body = struct.pack(">bbqii", 1, attributes, 1, -1, len(value)) + value
        return struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body

    one = message(b"v", 0)
    return message(compress(Codec.GZIP, one * (frame_bytes // len(one))), int(Codec.GZIP))


def fetch_session(names: Sequence[TopicPartition], session_id: int, epoch: int, **fields: Any) -> list[bytes]:
    replica = fields.pop("replica", -1)
    return encode_follower_request(
        replica_id=replica,
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=50 << 20,
        partitions=[FetchPartition(name, 1, 1 << 20, 0 if replica >= 0 else -1, 0) for name in names],
        session_id=session_id,
        session_epoch=epoch,
        **fields,
    )


class Table:
    """What was driven, and how long the loop was held at most."""

    def __init__(self, wide: Wide) -> None:
        self._wide = wide
        self._rows: list[tuple[str, str, float]] = []

    async def measure(
        self, what: str, key: ApiKey, version: int, chunks: Sequence[bytes], context: Any = CLIENT
    ) -> bytes:
        """Returns the answer."""
        held, answer = await self._wide.longest(key, version, chunks, context)
        self._rows.append((what, f"{sum(map(len, chunks)) / 1e6:.1f} MB", held))
        return b"".join(answer or ())

    async def took(self, what: str, size: str) -> None:
        """Since the last reset."""
        self._rows.append((what, size, await self._wide.holds.read()))

    def judge(self, capsys: pytest.CaptureFixture[str]) -> None:
        with capsys.disabled():
            print(f"\n{'API':44} {'size':>18} {'longest hold':>14}")
            for what, size, held in self._rows:
                print(f"{what:44} {size:>18} {held * 1000:>11.1f} ms")
        assert not {what: round(held * 1000, 1) for what, _, held in self._rows if held > LIMIT_S}


async def test_no_api_holds_the_loop(wide: Wide, capsys: pytest.CaptureFixture[str]) -> None:
    node, names, table = wide.node, wide.names, Table(wide)
    measure, took = table.measure, table.took
    wide.holds.reset()
    await node.replicas.update_metadata(metadata(names))
    await took("UpdateMetadata", f"{len(names)} partitions")
    wide.holds.reset()
    answer = await node.replicas.leader_and_isr(SENDER, orders(names))
    await took("LeaderAndIsr, new logs", f"{len(names)} partitions")
    assert set(answer.partitions.values()) == {ErrorCode.NONE}

    entry_bytes = 28
    many = wide.frame_bytes // entry_bytes
    often = names[:1] * min(many, ENTRIES_MAX - 1)
    unknown = [TopicPartition("nowhere", n) for n in range(min(many, 200_000))]
    await measure("Produce, all partitions", ApiKey.PRODUCE, 8, produce(names, 1_000))
    await measure("Produce, large batches", ApiKey.PRODUCE, 8, produce(names[: wide.frame_bytes >> 20], 1_000_000))
    await measure("Fetch, all partitions", ApiKey.FETCH, 11, fetch(names))
    await measure("Fetch by a follower", ApiKey.FETCH, 11, fetch(names, replica=2), INTERNAL)
    await measure("Fetch by a follower, caught up", ApiKey.FETCH, 11, fetch(names, replica=2, offset=1), INTERNAL)
    await measure("Fetch, one partition often", ApiKey.FETCH, 11, fetch(names[:1] * many, max_bytes=1))
    await measure("Fetch, unknown partitions", ApiKey.FETCH, 11, fetch(unknown))
    await measure("ListOffsets, latest", ApiKey.LIST_OFFSETS, 5, list_offsets(names, -1))
    await measure("ListOffsets, by time", ApiKey.LIST_OFFSETS, 5, list_offsets(names, 0))
    await measure("ListOffsets, one often", ApiKey.LIST_OFFSETS, 5, list_offsets(often, -1))
    await measure("OffsetForLeaderEpoch", ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, epochs(names))
    await measure("OffsetForLeaderEpoch, wide", ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, epochs(often))
    everything = [encode_request(request_class(ApiKey.METADATA)(topics=None, allow_auto_topic_creation=False), 8)]
    await measure("Metadata, all topics", ApiKey.METADATA, 8, everything)
    await measure("Metadata, again", ApiKey.METADATA, 8, everything)
    strange = [f"nowhere-{n}" for n in range(min(wide.frame_bytes // 16, ENTRIES_MAX))]
    unheard_of = named_topics(ApiKey.METADATA, 8, strange, allow_auto_topic_creation=False)
    await measure("Metadata, unknown topics", ApiKey.METADATA, 8, unheard_of)
    log_dirs = request_class(ApiKey.DESCRIBE_LOG_DIRS)
    await measure("DescribeLogDirs", ApiKey.DESCRIBE_LOG_DIRS, 1, [encode_request(log_dirs(topics=None), 1)])
    wide.holds.reset()
    await node.replicas.update_metadata(metadata(names))
    await took("UpdateMetadata, again", f"{len(names)} partitions")

    table.judge(capsys)


async def lead_everything(wide: Wide) -> None:
    """All partitions, and the coordinators' topics."""
    replicas = wide.node.replicas
    await replicas.update_metadata(metadata([*wide.names, *INTERNAL_NAMES]))
    answer = await replicas.leader_and_isr(SENDER, orders([*wide.names, *INTERNAL_NAMES], (ME,)))
    assert set(answer.partitions.values()) == {ErrorCode.NONE}
    while wide.node.groups.registry.ownership.is_loading or wide.node.transactions.is_loading:
        await asyncio.sleep(0)


def value_of(field: Field, number: int) -> Any:
    """Names that exist as long as there are any, then others; everything else is plausible."""
    known = {
        "group_id": "group",
        "group_instance_id": None,
        "transactional_id": "tx",
        "protocol_type": "consumer",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "timeout_ms": 1,
        "transaction_timeout_ms": 1_000,
        "validate_only": True,
        "resource_type": 2,
        "entity_type": "user",
        "operation": 2,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "replica_id": -1,
        "num_partitions": 1,
        "replication_factor": 1,
    }
    if field.name in known:
        return known[field.name]
    if field.type == "string":
        return f"topic-{number}"
    if field.type == "int32":
        return number
    return None


@pytest.mark.parametrize("part", range(4))
async def test_every_api_at_its_widest(
    wide: Wide, scaled: Callable[[int, int], int], capsys: pytest.CaptureFixture[str], part: int
) -> None:
    """Each list of each request fills a frame."""
    table = Table(wide)
    await lead_everything(wide)
    frame_bytes = scaled(64 << 10, 16 << 20)
    for key in [*MESSAGE_HANDLERS, *DATA_HANDLERS][part::4]:
        for path, version, body in widest(key, frame_bytes, value_of):
            context = INTERNAL if key is ApiKey.WRITE_TXN_MARKERS else CLIENT
            await table.measure(f"{APIS[key].name} {path}", key, version, [body], context)
    table.judge(capsys)


async def test_what_strangers_may_send(
    wide: Wide, scaled: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests that are small or plain, and cost more than they look."""
    node, names, table = wide.node, wide.names, Table(wide)
    measure, frame_bytes = table.measure, wide.frame_bytes
    await lead_everything(wide)

    def configure(name: TopicPartition, **changed: Any) -> TopicPartition:
        held = node.replicas.partitions[name].log
        assert held is not None
        held.config = dataclasses.replace(held.config, **changed)
        return name

    def produced(version: int, entries: Sequence[tuple[TopicPartition, bytes]]) -> tuple[ApiKey, int, list[bytes]]:
        return ApiKey.PRODUCE, version, encode_produce(version, acks=1, timeout_ms=1000, entries=entries)

    await measure("Produce, all partitions, acks=all", ApiKey.PRODUCE, 8, produce(names, 1_000, acks=-1))
    large_bytes = scaled(8 << 20, 100 << 20)
    large = configure(names[1], max_message_bytes=large_bytes + 1_000)
    await measure("Produce, one large batch", ApiKey.PRODUCE, 8, produce([large], large_bytes))
    compacted = [configure(name, cleanup_policy=("compact",)) for name in names[200:210]]
    small = bomb(frame_bytes)
    await measure("Produce, bombs", *produced(8, [(name, small) for name in names[100:110]]))
    await measure("Produce, bombs to compacted topics", *produced(8, [(name, small) for name in compacted]))
    many = build_batch([Record(key=b"k", value=b"", timestamp=1, headers=(("h", b""),))] * 60_000)
    await measure("Produce, many records with headers", *produced(8, [(name, many) for name in names[110:115]]))
    tiny = build_batch([Record(key=None, value=b"", timestamp=1)])
    await measure("Produce, many batches", *produced(2, [(name, tiny * BATCHES_MAX) for name in names[120:125]]))
    await measure("Produce, too many batches", *produced(2, [(names[0], tiny * (frame_bytes // len(tiny)))]))
    torn = (bytes(8) + struct.pack(">i", 10) + bytes(10)) * (frame_bytes // 22)
    await measure("Produce, a million torn batches", *produced(2, [(names[0], torn)]))
    await measure("Produce, old compressed set", *produced(2, [(names[0], old_set(frame_bytes // 2))]))

    # Fetch sessions.
    everybody = (
        (-1, CLIENT, "a consumer"),
        (2, CLIENT, "a stranger that calls itself a broker"),
        (2, INTERNAL, "a broker"),
    )
    for replica, context, who in everybody:
        unknown = [TopicPartition("nowhere", n) for n in range(min(frame_bytes // 28, 200_000))]
        for asked, what in ((unknown, "unknown"), (names, "all")):
            body = fetch_session(asked, 0, 0, replica=replica)
            answer = await measure(f"Fetch session of {who}, {what}", ApiKey.FETCH, 11, body, context)
            _, session, _ = decode_follower_response(memoryview(answer))
            for epoch in (1, 2):
                body = fetch_session([], session, epoch, replica=replica)
                await measure(f"  round {epoch}", ApiKey.FETCH, 11, body, context)
            body = fetch_session([], session, 3, replica=replica, forgotten=unknown)
            await measure("  forgets", ApiKey.FETCH, 11, body, context)
    table.judge(capsys)


async def test_periodic_work(wide: Wide, capsys: pytest.CaptureFixture[str]) -> None:
    """What a broker does by itself, over all partitions, and what the controller and a scraper make it do."""
    node, names, table = wide.node, wide.names, Table(wide)
    replicas, logs = node.replicas, node.replicas.logs
    size = f"{len(names)} partitions"
    listeners = metadata(names).brokers
    state, assignment = orders(names[:1])[0].state, Assignment(BOTH)
    topics = [(topic.encode(), partitions) for topic, partitions in grouped(names)]

    def entries(suffix: bytes) -> list[tuple[bytes, int, bytes]]:
        return [(topic, len(some), b"".join(encoders.pack_index(p) + suffix for p in some)) for topic, some in topics]

    sender = (OTHER, ControllerEpoch(1), BrokerEpoch(-1))
    update = encoders.update_metadata_body(
        6, *sender, entries(encoders.update_metadata_suffix(6, state, 0, BOTH, ())), listeners
    )
    await table.measure("UpdateMetadata", ApiKey.UPDATE_METADATA, 6, [update], INTERNAL)
    lead = encoders.leader_and_isr_body(
        4, *sender, entries(encoders.leader_and_isr_suffix(4, state, 0, assignment, True)), []
    )
    await table.measure("LeaderAndIsr", ApiKey.LEADER_AND_ISR, 4, [lead], INTERNAL)
    assert replicas.gauges.leaders == len(names)
    await table.measure("Produce, all partitions", ApiKey.PRODUCE, 8, produce(names, 100))

    async def work(what: str, doing: Awaitable[object]) -> None:
        wide.holds.reset()
        await doing
        await table.took(what, size)

    await work("flushes of new leader epochs", asyncio.sleep(EPOCHS_FLUSH_MS / 1000 + 1))
    await work("retention", logs.apply_retention())
    await work("recovery points", logs.checkpoint_recovery_points())
    await work("log start offsets", logs.checkpoint_log_start_offsets())
    await work("high watermarks", logs.checkpoint_high_watermarks())
    await work("expiry of producers", logs._expire_producers())
    await work("cleaner's choice", logs.cleaner.clean_filthiest())
    wide.holds.reset()
    snapshot = await in_slices(wide.metrics.snapshot())
    assert len(await asyncio.to_thread(exposition, snapshot)) > 100 * min(len(names), LOGS_MAX)
    await table.took("a scrape", size)

    # The other broker is gone: every ISR shrinks.
    replicas._max_lag = 0.01
    for partition in replicas.partitions.values():
        partition._max_lag = 0.01
    await asyncio.sleep(0.02)
    wide.holds.reset()
    shrinking = asyncio.create_task(replicas._shrink_isrs())
    while any(partition.pending_isr is None for partition in replicas.partitions.values()):
        await asyncio.sleep(0.02)
    await table.took("ISR shrinks", size)
    shrinking.cancel()
    stops = [(topic, [(p, 0, True) for p in partitions]) for topic, partitions in topics]
    stop = encoders.stop_replica_body(3, *sender, stops)
    await table.measure("StopReplica", ApiKey.STOP_REPLICA, 3, [stop], INTERNAL)
    assert not replicas.partitions
    table.judge(capsys)


def test_every_api_is_driven() -> None:
    """Those without a list are small."""
    control = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}
    driven = {*MESSAGE_HANDLERS, *DATA_HANDLERS, *control, ApiKey.API_VERSIONS}
    assert {api.key for api in served()} == driven


async def test_coordinators_with_much_to_do(
    wide: Wide, scaled: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Many groups, a large group, many transactional ids, a transaction over all partitions, and the end of it all."""
    node, table = wide.node, Table(wide)
    groups, members = scaled(1_000, 10_000), scaled(200, 2_000)
    await lead_everything(wide)

    def request(key: ApiKey, version: int, /, **fields: Any) -> tuple[ApiKey, int, list[bytes]]:
        return key, version, [encode_request(request_class(key)(**fields), version)]

    async def ask(key: ApiKey, version: int, chunks: Sequence[bytes]) -> Any:
        header = RequestHeader(key, version, 1, "test")
        answer = await node.handle(CLIENT, header, memoryview(b"".join(chunks)))
        assert answer is not None
        return decode_response(key, version, b"".join(answer))

    commit = request_class(ApiKey.OFFSET_COMMIT)
    entry = commit.OffsetCommitRequestTopic.OffsetCommitRequestPartition
    for n in range(groups):
        topic = commit.OffsetCommitRequestTopic(
            name="topic-0", partitions=[entry(partition_index=0, committed_offset=n)]
        )
        await ask(
            *request(ApiKey.OFFSET_COMMIT, 7, group_id=f"group-{n}", generation_id_or_member_epoch=-1, topics=[topic])
        )
        producer = await ask(
            *request(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=f"tx-{n}", transaction_timeout_ms=60_000)
        )
        assert producer.error_code == ErrorCode.NONE
    names = [f"group-{n}" for n in range(groups)]
    await table.measure("ListGroups", *request(ApiKey.LIST_GROUPS, 3))
    await table.measure("ListTransactions", *request(ApiKey.LIST_TRANSACTIONS, 0))
    await table.measure("DescribeGroups, all", *request(ApiKey.DESCRIBE_GROUPS, 5, groups=names))
    ids = [f"tx-{n}" for n in range(groups)]
    described = request(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids)
    await table.measure("DescribeTransactions, all", *described)

    # A large group: everyone joins, the leader assigns, everyone hears of it, everyone leaves.
    join = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    protocols = [join(name="range", metadata=bytes(100))]

    def joining(member: str) -> tuple[ApiKey, int, list[bytes]]:
        return request(
            ApiKey.JOIN_GROUP,
            5,
            group_id="large",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id=member,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=protocols,
        )

    waiting = []
    wide.holds.reset()
    for _ in range(members):
        required = await ask(*joining(""))
        waiting.append(asyncio.create_task(ask(*joining(required.member_id))))
        await asyncio.sleep(0)
    joined = await asyncio.gather(*waiting)
    await table.took("JoinGroup, the last of them", f"{members} members")
    leader = joined[0].leader
    assignment = request_class(ApiKey.SYNC_GROUP).SyncGroupRequestAssignment
    parts = [assignment(member_id=answer.member_id, assignment=bytes(100)) for answer in joined]

    def syncing(member: str) -> tuple[ApiKey, int, list[bytes]]:
        shared = {"group_id": "large", "generation_id": joined[0].generation_id, "member_id": member}
        return request(ApiKey.SYNC_GROUP, 3, assignments=parts if member == leader else [], **shared)

    wide.holds.reset()
    synced = [asyncio.create_task(ask(*syncing(answer.member_id))) for answer in joined if answer.member_id != leader]
    await asyncio.sleep(0)
    wide.holds.reset()  # not the sum of small requests that came in one turn
    await ask(*syncing(leader))
    await asyncio.gather(*synced)
    await table.took("SyncGroup of the leader", f"{members} members")
    identity = request_class(ApiKey.LEAVE_GROUP).MemberIdentity
    leaving = [identity(member_id=answer.member_id, group_instance_id=None) for answer in joined[::2]]
    await table.measure("DescribeGroups, a large one", *request(ApiKey.DESCRIBE_GROUPS, 5, groups=["large"]))
    await table.measure("LeaveGroup, half of them", *request(ApiKey.LEAVE_GROUP, 4, group_id="large", members=leaving))
    timers = node.groups.execution.timers
    wide.holds.reset()
    for key, (_, call) in list(timers._deadlines.items()):
        timers.set(key, 0, call)
    while node.groups.registry.groups["large"].members:
        await asyncio.sleep(0)
    await table.took("sessions end together", f"{members // 2} members")

    # One group commits everything, and reads it back.
    topics = [
        commit.OffsetCommitRequestTopic(
            name=topic, partitions=[entry(partition_index=p, committed_offset=1) for p in partitions]
        )
        for topic, partitions in grouped(wide.names)
    ]
    all_offsets = request(ApiKey.OFFSET_COMMIT, 7, group_id="group", generation_id_or_member_epoch=-1, topics=topics)
    await table.measure("OffsetCommit, all partitions", *all_offsets)
    await table.measure("OffsetFetch, all", *request(ApiKey.OFFSET_FETCH, 7, group_id="group", topics=None))

    # One transaction over all partitions.
    tx = {"transactional_id": "tx-0", "producer_id": 0, "producer_epoch": 0}
    producer = await ask(*request(ApiKey.INIT_PRODUCER_ID, 1, transactional_id="tx-0", transaction_timeout_ms=60_000))
    tx |= {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    add = request_class(ApiKey.ADD_PARTITIONS_TO_TXN)
    added = [
        add.AddPartitionsToTxnTopic(name=topic, partitions=partitions) for topic, partitions in grouped(wide.names)
    ]
    renamed = {f"v3_and_below_{name}": value for name, value in tx.items()}
    adding = request(ApiKey.ADD_PARTITIONS_TO_TXN, 1, v3_and_below_topics=added, **renamed)
    await table.measure("AddPartitionsToTxn, all partitions", *adding)
    wide.holds.reset()
    ended = await ask(*request(ApiKey.END_TXN, 1, committed=True, **tx))
    assert ended.error_code == ErrorCode.NONE
    while not all(
        p.log is not None and p.log.log_end_offset for p in map(node.replicas.partitions.get, wide.names) if p
    ):
        await asyncio.sleep(0)
    await table.took("EndTxn and its markers", f"{len(wide.names)} partitions")

    # The same id, and the same producers, are asked for very often.
    often = min(wide.frame_bytes // 8, ENTRIES_MAX - 1)
    filters = {"state_filters": [], "producer_id_filters": list(range(often)), "duration_filter": -1}
    await table.measure("ListTransactions, many filters", *request(ApiKey.LIST_TRANSACTIONS, 1, **filters))
    same = request(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx-0"] * often)
    await table.measure("DescribeTransactions, one often", *same)
    described = request_class(ApiKey.DESCRIBE_PRODUCERS)
    asked = [described.TopicRequest(name=topic, partition_indexes=some) for topic, some in grouped(wide.names)]
    await table.measure("DescribeProducers, all", *request(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked))
    asked = [described.TopicRequest(name="topic-0", partition_indexes=[0] * often)]
    await table.measure("DescribeProducers, one often", *request(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked))
    config = request_class(ApiKey.DESCRIBE_CONFIGS)
    one = config.DescribeConfigsResource(resource_type=2, resource_name="topic-0", configuration_keys=None)
    everything = {"include_synonyms": True, "include_documentation": True}
    await table.measure(
        "DescribeConfigs, one often", *request(ApiKey.DESCRIBE_CONFIGS, 4, resources=[one] * (often // 2), **everything)
    )

    # Offsets of a transaction, and the end of all of them.
    staged = request_class(ApiKey.TXN_OFFSET_COMMIT).TxnOffsetCommitRequestTopic
    to_stage = [
        staged(
            name=topic,
            partitions=[
                staged.TxnOffsetCommitRequestPartition(
                    partition_index=p, committed_offset=2, committed_leader_epoch=-1, committed_metadata=""
                )
                for p in partitions
            ],
        )
        for topic, partitions in grouped(wide.names)
    ]
    await table.measure(
        "TxnOffsetCommit, all partitions",
        *request(ApiKey.TXN_OFFSET_COMMIT, 2, group_id="group", topics=to_stage, **tx),
    )
    marker = request_class(ApiKey.WRITE_TXN_MARKERS)
    writable = marker.WritableTxnMarker
    marked = [
        writable.WritableTxnMarkerTopic(name=topic, partition_indexes=partitions)
        for topic, partitions in [*grouped(wide.names), ("__consumer_offsets", [0])]
    ]
    ended = writable(
        producer_id=tx["producer_id"],
        producer_epoch=tx["producer_epoch"],
        transaction_result=True,
        topics=marked,
        coordinator_epoch=0,
    )
    await table.measure(
        "WriteTxnMarkers, all partitions", *request(ApiKey.WRITE_TXN_MARKERS, 0, markers=[ended]), INTERNAL
    )
    forgotten = request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic
    gone = [
        forgotten(
            name=topic, partitions=[forgotten.OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
        )
        for topic, partitions in grouped(wide.names)
    ]
    await table.measure("OffsetDelete, all", *request(ApiKey.OFFSET_DELETE, 0, group_id="group", topics=gone))
    await ask(*all_offsets)
    await table.measure("DeleteGroups, all offsets", *request(ApiKey.DELETE_GROUPS, 2, groups_names=["group"]))

    delete = request_class(ApiKey.DELETE_RECORDS)
    cut = delete.DeleteRecordsTopic.DeleteRecordsPartition
    cuts = [
        delete.DeleteRecordsTopic(name=topic, partitions=[cut(partition_index=p, offset=-1) for p in partitions])
        for topic, partitions in grouped(wide.names)
    ]
    await table.measure("DeleteRecords", *request(ApiKey.DELETE_RECORDS, 1, topics=cuts, timeout_ms=1))
    await table.measure("DeleteGroups, half of them", *request(ApiKey.DELETE_GROUPS, 2, groups_names=names[::2]))
    wide.holds.reset()
    await node.replicas.leader_and_isr(SENDER, orders(INTERNAL_NAMES, (ME,), leader=OTHER, epoch=1))
    while node.groups.registry.groups or node.groups.loading._unloading:
        await asyncio.sleep(0)
    await table.took("LeaderAndIsr, coordinators resign", f"{groups} groups and ids")
    wide.holds.reset()
    await node.replicas.leader_and_isr(SENDER, orders(INTERNAL_NAMES, (ME,), epoch=2))
    while node.groups.registry.ownership.is_loading or node.transactions.is_loading:
        await asyncio.sleep(0)
    await table.took("LeaderAndIsr, coordinators load", f"{groups} groups and ids")
    commits, left = node.groups.commits, len(node.groups.registry.groups)
    commits._config = dataclasses.replace(commits._config, offsets_retention_minutes=0)
    wide.holds.reset()
    await commits.expire()
    await table.took("offsets expire", f"{left} groups")
    assert left > groups // 2 - 1 and not node.groups.registry.groups
    wide.holds.reset()
    stops = [StopOrder(name, LeaderEpoch(0), delete=True) for name in wide.names]
    await node.replicas.stop_replica(SENDER, stops)
    await table.took("StopReplica, delete", f"{len(wide.names)} partitions")
    table.judge(capsys)


async def test_many_connections_wait(
    wide: Wide, scaled: Callable[[int, int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """An append ends the fetches of all that wait for it. Then they wait again, and their process dies."""
    table, count = Table(wide), scaled(100, 1_000)
    await lead_everything(wide)
    names, header = wide.names[:50], RequestHeader(ApiKey.FETCH, 11, 1, "test")

    async def waiting(names: Sequence[TopicPartition], offset: int) -> tuple[list[ClientConnection], list[Any]]:
        body = b"".join(fetch(names, offset=offset, max_wait_ms=60_000))
        clients = [ClientConnection() for _ in range(count)]
        fetches = [
            asyncio.create_task(wide.node.handle(CLIENT._replace(connection=client), header, memoryview(body)))
            for client in clients
        ]
        while len(wide.node.replicas.waiting_fetches) < count:
            await asyncio.sleep(0)
        wide.holds.reset()
        return clients, fetches

    _, fetches = await waiting(names[:1], 0)
    append = RequestHeader(ApiKey.PRODUCE, 8, 1, "test")
    await wide.node.handle(CLIENT, append, memoryview(b"".join(produce(names[:1], 100))))
    await asyncio.gather(*fetches)
    await table.took("Produce, and the fetches that wait for it", f"{count} connections")
    clients, fetches = await waiting(names[1:], 0)
    for client in clients:
        client.gone()
    await asyncio.gather(*fetches)
    await table.took("clients that wait disconnect", f"{count} connections")
    table.judge(capsys)
