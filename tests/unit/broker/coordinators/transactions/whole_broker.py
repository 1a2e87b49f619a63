"""Broker 1, alone, with real logs: it leads the topics and coordinates. Requests go in as bytes; no socket is open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.broker import BrokerNode
from klamm.log.disk import FileDisk
from klamm.log.log_manager import LogManager
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, PartitionOrder, Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Ports
from klamm.model.requests import ANONYMOUS, RequestContext
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.security.authorizer import AllowAll, Operation
from klamm.security.quotas import ClientQuotas
from klamm.telemetry.metrics import MetricsRegistry
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.records import Record, build_batch, iter_batches, iter_records
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import producer_id_block
from klamm.zookeeper.znodes import topic as topic_znode

ME = BrokerId(1)
SENDER = Sender(ME, ControllerEpoch(1), BrokerEpoch(-1))
CLIENT = RequestContext(ANONYMOUS, "CLIENT", "test", "127.0.0.1:1", False)
INTERNAL = CLIENT._replace(listener="INTERNAL", privileged=True)
STATE = TopicPartition("__transaction_state", 0)
TIME = SystemClock().wall_ms()
"""Timestamp of the first record of each batch. Much older records would begin a new segment with each marker."""


class Guard(AllowAll):
    def __init__(self) -> None:
        self.denied: set[tuple[Operation, str]] = set()

    def authorize(self, context: RequestContext, operation: Operation, resource: Any) -> bool:
        return (operation, resource.name) not in self.denied and super().authorize(context, operation, resource)


class Events:
    def emit(self, records: Any) -> None: ...


class WholeBroker:
    def __init__(self, node: BrokerNode, guard: Guard, zk: Any, metrics: MetricsRegistry) -> None:
        self.node = node
        self.guard = guard
        self.zk = zk
        self.metrics = metrics

    # --- the controller ---

    async def lead(
        self, topic: str, partitions: int = 1, *, epoch: int = 0, leader: int = 1, isr: int = 1, wait: bool = True
    ) -> None:
        """Broker 2, where it is named, does not exist, but a follower must know it as alive."""
        self.zk.put(topic_znode.path(topic), topic_znode.encode({p: Assignment((ME,)) for p in range(partitions)}))
        brokers = tuple(BrokerId(b) for b in range(1, isr + 1))
        replicas = tuple({ME: None, BrokerId(leader): None, **dict.fromkeys(brokers)})
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), brokers, ControllerEpoch(1))
        orders = [PartitionOrder(TopicPartition(topic, p), state, 0, Assignment(replicas)) for p in range(partitions)]
        told = PartitionMetadata(BrokerId(leader), LeaderEpoch(epoch), brokers, replicas, ())
        alive = [
            Broker(BrokerId(b), tuple(Endpoint(name, "127.0.0.1", 1) for name in ("CLIENT", "INTERNAL")))
            for b in (1, 2)
        ]
        update = MetadataUpdate(SENDER, alive, [(topic, [(p, told) for p in range(partitions)])])
        assert await self.node.replicas.update_metadata(update) is ErrorCode.NONE
        answer = await self.node.replicas.leader_and_isr(SENDER, orders)
        assert set(answer.partitions.values()) == {ErrorCode.NONE}
        if wait:
            await self.settled(lambda: not self.node.transactions.is_loading)

    async def settled(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    def log(self, name: TopicPartition) -> Any:
        return self.node.replicas.partitions[name].log

    def records(self, name: TopicPartition) -> list[Record]:
        found = self.log(name).read(0, 1 << 20, upper_bound=1 << 60, at_least_one=True)
        view = memoryview(found.records)
        return [record for position, _ in iter_batches(view) for record in iter_records(view[position:])]

    # --- clients ---

    async def ask(self, key: ApiKey, version: int, /, context: RequestContext = CLIENT, **fields: Any) -> Any:
        body = encode_request(request_class(key)(**fields), version)
        answer = await self.node.handle(context, RequestHeader(key, version, 1, "test"), memoryview(body))
        assert answer is not None
        return decode_response(key, version, b"".join(answer))

    async def init(self, transactional_id: str | None = "tx", version: int = 3, **fields: Any) -> tuple[int, int, int]:
        asked = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1} | fields
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=transactional_id, **asked)
        return answer.error_code, answer.producer_id, answer.producer_epoch

    async def add(
        self, producer_id: int, epoch: int, *names: TopicPartition, transactional_id: str = "tx"
    ) -> dict[TopicPartition, int]:
        cls = request_class(ApiKey.ADD_PARTITIONS_TO_TXN).AddPartitionsToTxnTopic
        answer = await self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            1,
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[cls(name=name.topic, partitions=[name.partition]) for name in names],
        )
        return {
            TopicPartition(topic.name, result.partition_index): result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }

    async def add_offsets(self, producer_id: int, epoch: int, group: str, transactional_id: str = "tx") -> int:
        answer = await self.ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            1,
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
        )
        return int(answer.error_code)

    async def end(self, producer_id: int, epoch: int, *, commit: bool, transactional_id: str = "tx") -> int:
        answer = await self.ask(
            ApiKey.END_TXN,
            1,
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        return int(answer.error_code)

    async def produce(
        self,
        name: TopicPartition,
        *values: bytes,
        producer: tuple[int, int] = (-1, -1),
        sequence: int = -1,
        transactional_id: str | None = "tx",
        transactional: bool = True,
        time: int = TIME,
        acks: int = -1,
        version: int = 8,
    ) -> int:
        batch = build_batch(
            [Record(None, value, time + number) for number, value in enumerate(values)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            transactional=transactional,
        )
        cls = request_class(ApiKey.PRODUCE)
        topic = cls.TopicProduceData(
            name=name.topic,
            partition_data=[cls.TopicProduceData.PartitionProduceData(index=name.partition, records=batch)],
        )
        answer = await self.ask(
            ApiKey.PRODUCE, version, transactional_id=transactional_id, acks=acks, timeout_ms=1_000, topic_data=[topic]
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    async def fetch(
        self, name: TopicPartition, offset: int = 0, *, committed: bool, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> Any:
        cls = request_class(ApiKey.FETCH)
        entry = cls.FetchTopic.FetchPartition(
            partition=name.partition,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=-1,
            log_start_offset=-1,
        )
        answer = await self.ask(
            ApiKey.FETCH,
            11,
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            topics=[cls.FetchTopic(topic=name.topic, partitions=[entry])],
            forgotten_topics_data=[],
            rack_id="",
        )
        return answer.responses[0].partitions[0]

    async def list_offset(self, name: TopicPartition, timestamp: int, *, committed: bool) -> int:
        cls = request_class(ApiKey.LIST_OFFSETS)
        entry = cls.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=name.partition, current_leader_epoch=-1, timestamp=timestamp
        )
        answer = await self.ask(
            ApiKey.LIST_OFFSETS,
            5,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[cls.ListOffsetsTopic(name=name.topic, partitions=[entry])],
        )
        return int(answer.topics[0].partitions[0].offset)

    async def write_markers(
        self,
        producer: tuple[int, int],
        names: Sequence[TopicPartition],
        *,
        commit: bool = True,
        coordinator_epoch: int = 0,
        version: int = 0,
        context: RequestContext = INTERNAL,
    ) -> list[int]:
        cls = request_class(ApiKey.WRITE_TXN_MARKERS)
        topics = [
            cls.WritableTxnMarker.WritableTxnMarkerTopic(name=name.topic, partition_indexes=[name.partition])
            for name in names
        ]
        marker = cls.WritableTxnMarker(
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_result=commit,
            topics=topics,
            coordinator_epoch=coordinator_epoch,
        )
        answer = await self.ask(ApiKey.WRITE_TXN_MARKERS, version, context, markers=[marker])
        [result] = answer.markers
        assert result.producer_id == producer[0]
        return [int(partition.error_code) for topic in result.topics for partition in topic.partitions]


@asynccontextmanager
async def running_broker(*directories: Path, zk: Any, **settings: Any) -> AsyncIterator[WholeBroker]:
    config = BrokerConfig(
        broker_id=1,
        log_dirs=tuple(map(str, directories)),
        inter_broker_listener_name="INTERNAL",
        transaction_state_log_min_isr=1,
        **settings,
    )
    zk.put(producer_id_block.PATH, None)
    async with AsyncExitStack() as stack:
        disk, clock = FileDisk(), SystemClock()
        stack.callback(disk.close)
        logs = LogManager(disk, clock, config, random.Random(1))
        logs.directories.lock()
        guard, metrics = Guard(), MetricsRegistry()
        node = BrokerNode(
            broker_id=ME,
            cluster_id="cluster",
            config=config,
            ports=Ports(clock, AsyncioNetwork(), disk, random.Random(2)),
            zk=zk,
            logs=logs,
            events=Events(),
            metrics=metrics,
            authorizer=guard,
            quotas=ClientQuotas(clock),
            controller=None,  # type: ignore[arg-type]
        )
        await node.load_logs()
        await stack.enter_async_context(logs.running())
        await stack.enter_async_context(node.running())
        yield WholeBroker(node, guard, zk, metrics)
        assert node.replicas.guard.failures == {}, "a defect that a guard caught"


@pytest.fixture
async def broker(tmp_path: Path, zk: Any) -> AsyncIterator[WholeBroker]:
    async with running_broker(tmp_path / "data", zk=zk) as running:
        await running.lead("__transaction_state")
        await running.lead("orders", 2)
        yield running
