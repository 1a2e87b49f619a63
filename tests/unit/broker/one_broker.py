"""Broker 1 of a cluster of two without sockets: tests pass bytes to its dispatcher and play the controller."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from klamm.broker.appends import Appends
from klamm.broker.config_admin import ConfigAdmin
from klamm.broker.coordinators.groups.coordinator import GroupCoordinator
from klamm.broker.coordinators.groups.zookeeper_offsets import ZooKeeperOffsets
from klamm.broker.coordinators.internal_topic import InternalTopic, offsets_shape, transactions_shape
from klamm.broker.coordinators.transactions.composition import transaction_coordinator
from klamm.broker.dynamic_configs import DynamicConfigs
from klamm.broker.fetch_sessions import FetchSessions
from klamm.broker.handlers.dispatch import Dispatcher
from klamm.broker.handlers.services import Services
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.quota_admin import QuotaAdmin
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.resting_partitions import RestingPartitions
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import TopicAdmin
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, Sender
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.requests import ANONYMOUS, RequestContext
from klamm.model.settings import INT_MAX
from klamm.security.authorizer import AllowAll, Operation
from klamm.security.quotas import ClientQuotas
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.server_connection import RequestHeader

TP = TopicPartition("orders", 0)
CLIENT = RequestContext(ANONYMOUS, "CLIENT", "test", "127.0.0.1:1", False)
INTERNAL = CLIENT._replace(listener="INTERNAL", privileged=True)


class Controller:
    is_active = True
    refusal: ErrorCode | None = None

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        return [TopicPartition(f"t{broker}", broker_epoch)]


class Guard(AllowAll):
    def __init__(self) -> None:
        self.denied: set[tuple[Operation, str]] = set()

    def authorize(self, context: RequestContext, operation: Operation, resource: Any) -> bool:
        return (operation, resource.name) not in self.denied and super().authorize(context, operation, resource)


class Events:
    def emit(self, records: Any) -> None: ...


class MeteredQuotas:
    """Throttles by `throttle_ms` and remembers each charge."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []
        self.throttle_ms = 0

    counts_time = False

    def fetch_bytes_max(self, context: RequestContext) -> int:
        return INT_MAX

    def throttle(self, context: RequestContext, api: str, size_bytes: int, seconds: float = 0.0) -> int:
        self.charged.append((api, size_bytes))
        return self.throttle_ms


class OneBroker:
    """Broker 1 of the brokers 1 and 2; `told` sends it an UpdateMetadata."""

    def __init__(self, zk: Any, logs: Any, clock: Any) -> None:
        self.zk = zk
        self.logs = logs
        self.controller = Controller()
        self.guard = Guard()
        self.quotas = MeteredQuotas()
        self.client_quotas = ClientQuotas(clock)
        config = BrokerConfig(
            broker_id=1,
            zookeeper_connect="zk:2181",
            listeners=("CLIENT://:1", "INTERNAL://:2"),
            listener_security_protocol_map=("CLIENT:PLAINTEXT", "INTERNAL:PLAINTEXT"),
            inter_broker_listener_name="INTERNAL",
            num_partitions=2,
            offsets_topic_replication_factor=2,
        )
        self.metadata = MetadataCache()
        configs = TopicConfigs(zk, clock, TopicConfig(), 1.0)
        self.replicas = ReplicaManager(
            BrokerId(1),
            config,
            clock=clock,
            zk=zk,
            logs=logs,
            metadata=self.metadata,
            configs=configs,
            events=Events(),
            endpoint=lambda leader: pytest.fail("this broker follows no leader"),
        )
        self.topics = TopicAdmin(zk, random.Random(1), configs, partitions_default=2, replication_factor_default=1)
        self.offsets_topic = InternalTopic(offsets_shape(config), self.metadata, self.topics)
        self.transactions_topic = InternalTopic(transactions_shape(config), self.metadata, self.topics)
        self.dynamic = DynamicConfigs(
            BrokerId(1), config, zk, configs, logs, self.replicas.leader_quota, self.replicas.follower_quota
        )
        appends, producer_ids = Appends(self.replicas), ProducerIds(zk, BrokerId(1))
        self.groups = GroupCoordinator(
            config, topic=self.offsets_topic, appends=appends, replicas=self.replicas, random=random.Random(1)
        )
        self.transactions, _, self.markers = transaction_coordinator(
            self.replicas,
            appends,
            self.transactions_topic,
            producer_ids,
            self.groups.commits,
            lambda broker: pytest.fail("this broker sends no markers to others"),
            self.topics,
        )
        self.handle = Dispatcher(
            Services(
                cluster_id="the-cluster",
                config=config,
                metadata=self.metadata,
                replicas=self.replicas,
                appends=appends,
                reads=Reads(self.replicas),
                fetch_sessions=FetchSessions(
                    config.fetch_session_cache_slots,
                    clock,
                    random.Random(1),
                    partial(RestingPartitions, self.replicas),
                ),
                topics=self.topics,
                offsets_topic=self.offsets_topic,
                transactions_topic=self.transactions_topic,
                groups=self.groups,
                old_offsets=ZooKeeperOffsets(zk, config.offset_metadata_max_bytes),
                quotas=QuotaAdmin(zk, self.client_quotas),
                client_quotas=self.quotas,
                configs=ConfigAdmin(zk, self.dynamic, configs),
                producer_ids=producer_ids,
                transactions=self.transactions,
                markers=self.markers,
                controller=self.controller,
                authorizer=self.guard,
            ),
            self.quotas,
        )

    async def ask(self, key: ApiKey, version: int, /, context: RequestContext = CLIENT, **fields: Any) -> Any:
        body = encode_request(request_class(key)(**fields), version)
        answer = await self.handle(context, RequestHeader(key, version, 1, "test"), memoryview(body))
        assert answer is not None
        return decode_response(key, version, b"".join(answer))

    async def told(
        self,
        leader: int = 1,
        *,
        alive: tuple[int, ...] = (1, 2),
        topic_name: str = "orders",
        partitions: int = 1,
        listeners: tuple[str, ...] = ("CLIENT", "INTERNAL"),
    ) -> None:
        brokers = [
            Broker(BrokerId(b), tuple(Endpoint(name, f"host{b}", 9090 + b) for name in listeners), f"rack{b}")
            for b in alive
        ]
        both = (BrokerId(1), BrokerId(2))
        state = PartitionMetadata(BrokerId(leader), LeaderEpoch(7), both, both, ())
        topics = [(topic_name, [(p, state) for p in range(partitions)])]
        sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
        assert await self.replicas.update_metadata(MetadataUpdate(sender, brokers, topics)) is ErrorCode.NONE

    async def metadata_of(self, *names: str, version: int = 8, create: bool = False) -> Any:
        topics = [request_class(ApiKey.METADATA).MetadataRequestTopic(name=name) for name in names]
        return await self.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=create)

    async def create(self, *names: str, version: int = 5, timeout_ms: int = 5_000, **fields: Any) -> list[Any]:
        cls = request_class(ApiKey.CREATE_TOPICS).CreatableTopic
        shape = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} | fields
        validate_only = shape.pop("validate_only", False)
        answer = await self.ask(
            ApiKey.CREATE_TOPICS,
            version,
            topics=[cls(name=name, **shape) for name in names],
            timeout_ms=timeout_ms,
            validate_only=validate_only,
        )
        return list(answer.topics)


@pytest.fixture
async def one(zk: Any, logs: Any, clock: Any) -> AsyncIterator[OneBroker]:
    broker = OneBroker(zk, logs, clock)
    async with broker.replicas.running():
        yield broker


async def lead(one: OneBroker, make_order: Any, *, epoch: int = 0, isr: tuple[int, ...] = (1,)) -> Any:
    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
    answer = await one.replicas.leader_and_isr(sender, [make_order(epoch=epoch, isr=isr, replicas=(1, 2))])
    assert answer.partitions == {TP: ErrorCode.NONE}
    return one.logs.kept[TP]
