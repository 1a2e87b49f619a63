"""Handlers through bytes, without a socket: what a client of a given version gets to see."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from klamm.broker.appends import Appends
from klamm.broker.handlers.dispatch import Dispatcher, served
from klamm.broker.handlers.services import Services
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import TopicAdmin
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, Sender
from klamm.model.errors import ErrorCode, KafkaError, NodeExists
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.requests import ANONYMOUS, ClientConnection, RequestContext
from klamm.security.authorizer import AllowAll, Operation
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.records import Record, build_batch
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import broker_id, delete_topics, producer_id_block, topic

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
    """Throttles by the size that it is told, and remembers each charge."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []
        self.throttle_ms = 0

    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        self.charged.append((api, size_bytes))
        return self.throttle_ms


class OneBroker:
    """Broker 1 of a cluster 1, 2; `told` is its UpdateMetadata."""

    def __init__(self, zk: Any, logs: Any, clock: Any) -> None:
        self.zk = zk
        self.logs = logs
        self.controller = Controller()
        self.guard = Guard()
        self.quotas = MeteredQuotas()
        config = BrokerConfig(broker_id=1, inter_broker_listener_name="INTERNAL", num_partitions=2)
        self.metadata = MetadataCache()
        self.replicas = ReplicaManager(
            BrokerId(1),
            config,
            clock=clock,
            zk=zk,
            logs=logs,
            metadata=self.metadata,
            configs=TopicConfigs(zk, clock, TopicConfig(), 1.0),
            events=Events(),
            endpoint=lambda leader: pytest.fail("nobody is followed here"),
        )
        self.handle = Dispatcher(
            Services(
                me=BrokerId(1),
                cluster_id="the-cluster",
                config=config,
                clock=clock,
                metadata=self.metadata,
                replicas=self.replicas,
                appends=Appends(self.replicas),
                reads=Reads(self.replicas),
                topics=TopicAdmin(
                    zk, random.Random(1), TopicConfig(), partitions_default=2, replication_factor_default=1
                ),
                producer_ids=ProducerIds(zk, BrokerId(1)),
                controller=self.controller,
                authorizer=self.guard,
            ),
            self.quotas,
        )

    async def ask(self, key: ApiKey, version: int, context: RequestContext = CLIENT, **fields: Any) -> Any:
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


# --- ApiVersions ---


async def test_api_versions_lists_what_is_served(one: OneBroker) -> None:
    answer = await one.ask(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1.0")
    ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert answer.error_code == 0
    assert ranges[ApiKey.PRODUCE] == (0, 8), "librdkafka compresses only if version 0 is in the range"
    assert ranges[ApiKey.FETCH] == (0, 11)
    assert set(ranges) == {api.key for api in served()}


async def test_api_versions_of_the_future(one: OneBroker) -> None:
    answer = await one.handle(CLIENT, RequestHeader(ApiKey.API_VERSIONS, 99, 1, "x"), memoryview(b"\xff" * 9))
    assert answer is not None
    decoded = decode_response(ApiKey.API_VERSIONS, 0, b"".join(answer))
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(k.api_key, k.min_version, k.max_version) for k in decoded.api_keys] == [(18, 0, 3)]


async def test_api_versions_from_software_without_a_name(one: OneBroker) -> None:
    answer = await one.ask(ApiKey.API_VERSIONS, 3, client_software_name="", client_software_version="1")
    assert (answer.error_code, list(answer.api_keys)) == (ErrorCode.INVALID_REQUEST, [])


async def test_other_unknown_versions_and_apis_close_the_connection(one: OneBroker) -> None:
    for key, version in ((ApiKey.METADATA, 10), (ApiKey.JOIN_GROUP, 0)):
        with pytest.raises(ProtocolError):
            await one.handle(CLIENT, RequestHeader(key, version, 1, None), memoryview(b""))


# --- Metadata ---


@pytest.mark.case("MDC-07")
async def test_metadata_of_everything_and_of_nothing(one: OneBroker) -> None:
    await one.told()
    everything = await one.ask(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=True)
    assert [t.name for t in everything.topics] == ["orders"]
    assert [(b.node_id, b.host, b.port, b.rack) for b in everything.brokers] == [
        (1, "host1", 9091, "rack1"),
        (2, "host2", 9092, "rack2"),
    ]
    assert (everything.controller_id, everything.cluster_id) == (2, "the-cluster")
    assert [t.name for t in (await one.ask(ApiKey.METADATA, 0, topics=[])).topics] == ["orders"]
    assert list((await one.metadata_of(version=1)).topics) == []
    partition = everything.topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch, list(partition.replica_nodes)) == (1, 7, [1, 2])


@pytest.mark.case("MDC-02")
async def test_leader_that_is_not_alive(one: OneBroker) -> None:
    await one.told(leader=2, alive=(1,))
    partition = (await one.metadata_of("orders")).topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (partition.leader_epoch, list(partition.isr_nodes)) == (7, [1, 2])


@pytest.mark.case("MDC-03")
async def test_dead_replica_is_listed_except_to_version_0(one: OneBroker) -> None:
    await one.told(leader=1, alive=(1,))
    modern = (await one.metadata_of("orders")).topics[0].partitions[0]
    assert (modern.error_code, list(modern.replica_nodes)) == (0, [1, 2])
    oldest = (await one.metadata_of("orders", version=0)).topics[0].partitions[0]
    assert (oldest.error_code, list(oldest.replica_nodes)) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])


async def test_leader_without_the_listener_of_the_client(one: OneBroker) -> None:
    await one.told(listeners=("INTERNAL",))
    modern = await one.metadata_of("orders")
    assert list(modern.brokers) == []
    assert modern.topics[0].partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
    old = (await one.metadata_of("orders", version=5)).topics[0].partitions[0]
    assert old.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.case("TOP-24")
async def test_missing_topics(one: OneBroker) -> None:
    assert (await one.metadata_of("new")).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE, "not informed yet"
    assert not one.zk.tree.writes
    await one.told()
    unknown = (await one.metadata_of("new", create=False)).topics[0]
    assert (unknown.error_code, list(unknown.partitions)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    created = (await one.metadata_of("new.one", "new_one", "bad/name", create=True)).topics
    assert [t.error_code for t in created] == [
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert len(topic.decode("", one.zk.data(topic.path("new.one"))).partitions) == 2
    internal = (await one.metadata_of("__consumer_offsets", create=True)).topics[0]
    assert (internal.error_code, internal.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
    again = (await one.metadata_of("new.one", create=True)).topics[0]
    assert again.error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_what_may_not_be_described_is_hidden(one: OneBroker) -> None:
    await one.told()
    one.guard.denied = {(Operation.DESCRIBE, "orders")}
    assert list((await one.ask(ApiKey.METADATA, 8, topics=None, allow_auto_topic_creation=True)).topics) == []
    assert (await one.metadata_of("orders")).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# --- topics ---


@pytest.mark.case("TOP-20", "TOP-21", "TOP-23")
async def test_create_topics(one: OneBroker) -> None:
    await one.told()
    creating = asyncio.create_task(one.create("fresh"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert topic.path("fresh") in one.zk.tree.nodes
    assert not creating.done(), "until its leaders are known here"
    await one.told(topic_name="fresh")
    (result,) = await creating
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 1, 1)
    sources = {entry.name: entry.config_source for entry in result.configs}
    assert sources["retention.ms"] == 5
    assert len(sources) > 20
    assert [r.error_code for r in await one.create("orders", "fresh")] == [ErrorCode.TOPIC_ALREADY_EXISTS] * 2
    assert [r.error_code for r in await one.create("x", "x")] == [ErrorCode.INVALID_REQUEST]
    (negative,) = await one.create("x", num_partitions=-2)
    assert negative.error_code == ErrorCode.INVALID_PARTITIONS
    assert (negative.num_partitions, list(negative.configs)) == (-1, [])
    one.controller.is_active = False
    assert [r.error_code for r in await one.create("y")] == [ErrorCode.NOT_CONTROLLER]


async def test_a_dedicated_controller_gets_no_replicas_whoever_places_them(one: OneBroker) -> None:
    await one.told(alive=(1, 2, 3))
    for broker in (1, 2, 3):
        value = Broker(BrokerId(broker), (Endpoint("INTERNAL", "h", 1),), controller_only=broker == 2)
        one.zk.put(broker_id.path(value.id), broker_id.encode(value, 0))
    one.zk.put(broker_id.path(BrokerId(3)), b"junk")  # unreadable, but a broker
    creating = asyncio.create_task(one.create("fresh", num_partitions=6, replication_factor=2))
    while topic.path("fresh") not in one.zk.tree.nodes:
        await asyncio.sleep(0)
    creating.cancel()
    placed = topic.decode("t", one.zk.data(topic.path("fresh"))).partitions
    assert {broker for assignment in placed.values() for broker in assignment.replicas} == {1, 3}
    (refused,) = await one.create("wide", replication_factor=3)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_create_topics_validate_only_writes_nothing(one: OneBroker) -> None:
    await one.told()
    (result,) = await one.create("fresh", validate_only=True)
    assert result.error_code == 0
    assert not one.zk.tree.writes


@pytest.mark.case("TOP-22")
@pytest.mark.parametrize("timeout_ms", [1, 0, -1])
async def test_create_topics_without_patience(one: OneBroker, timeout_ms: int) -> None:
    await one.told()
    (result,) = await one.create("fresh", timeout_ms=timeout_ms)
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert topic.path("fresh") in one.zk.tree.nodes


async def delete(one: OneBroker, *names: str, version: int = 4, timeout_ms: int = 5_000) -> dict[str, int]:
    answer = await one.ask(ApiKey.DELETE_TOPICS, version, topic_names=list(names), timeout_ms=timeout_ms)
    return {result.name: result.error_code for result in answer.responses}


@pytest.mark.case("DEL-08", "DEL-09")
async def test_delete_topics(one: OneBroker) -> None:
    await one.told()
    deleting = asyncio.create_task(delete(one, "orders", "nowhere"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert delete_topics.path("orders") in one.zk.tree.nodes
    assert not deleting.done()  # answered when the topic has left the cache
    await one.told(leader=-2)
    assert await deleting == {"orders": ErrorCode.NONE, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    (missing,) = (await one.metadata_of("orders")).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_topics.path("nowhere") not in one.zk.tree.nodes


@pytest.mark.case("DEL-10")
async def test_delete_topics_without_patience(one: OneBroker) -> None:
    await one.told()
    assert await delete(one, "orders", timeout_ms=0) == {"orders": ErrorCode.REQUEST_TIMED_OUT}
    assert delete_topics.path("orders") in one.zk.tree.nodes  # and the controller goes on


@pytest.mark.case("DEL-05")
async def test_a_second_deletion_waits_for_the_first(one: OneBroker) -> None:
    """That it is marked already is an error of the tools that write the mark; a client's wish is being fulfilled."""
    await one.told()
    await delete(one, "orders", timeout_ms=0)
    with pytest.raises(NodeExists):
        await one.zk.create(delete_topics.path("orders"))
    again = asyncio.create_task(delete(one, "orders"))
    for _ in range(50):
        await asyncio.sleep(0)
    await one.told(leader=-2)
    assert await again == {"orders": ErrorCode.NONE}


@pytest.mark.case("DEL-11")
async def test_delete_topics_is_for_the_controller(one: OneBroker) -> None:
    await one.told()
    one.controller.is_active = False
    assert await delete(one, "orders", "nowhere") == dict.fromkeys(("orders", "nowhere"), ErrorCode.NOT_CONTROLLER)
    assert delete_topics.path("orders") not in one.zk.tree.nodes


@pytest.mark.case("DEL-12")
@pytest.mark.parametrize(
    ("version", "expected"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
async def test_delete_topics_switched_off(one: OneBroker, version: int, expected: ErrorCode) -> None:
    await one.told()
    off = replace(one.handle._services.config, delete_topic_enable=False)
    object.__setattr__(one.handle._services, "config", off)
    assert await delete(one, "orders", version=version) == {"orders": expected}
    assert delete_topics.path("orders") not in one.zk.tree.nodes


# --- offsets, producer ids, cluster, control ---


async def lead(one: OneBroker, make_order: Any, *, epoch: int = 0, isr: tuple[int, ...] = (1,)) -> Any:
    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
    answer = await one.replicas.leader_and_isr(sender, [make_order(epoch=epoch, isr=isr, replicas=(1, 2))])
    assert answer.partitions == {TP: ErrorCode.NONE}
    return one.logs.kept[TP]


async def list_offset(one: OneBroker, timestamp: int, version: int = 5, *, name: str = "orders", **extra: int) -> Any:
    cls = request_class(ApiKey.LIST_OFFSETS)
    entry = cls.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0,
        timestamp=timestamp,
        current_leader_epoch=extra.get("epoch", -1),
        max_num_offsets=1,
    )
    answer = await one.ask(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=extra.get("replica_id", -1),
        isolation_level=0,
        topics=[cls.ListOffsetsTopic(name=name, partitions=[entry])],
    )
    return answer.topics[0].partitions[0]


@pytest.mark.case("FRQ-04", "PAR-05")
async def test_list_offsets(one: OneBroker, make_order: Any) -> None:
    await one.told()
    assert (await list_offset(one, -1, name="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await list_offset(one, -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = await lead(one, make_order)
    log.fill(0, 0, 0)
    assert one.replicas.partitions[TP].maybe_increment_high_watermark()
    await lead(one, make_order, epoch=1)
    latest, earliest = await list_offset(one, -1), await list_offset(one, -2)
    assert (latest.error_code, latest.offset, latest.leader_epoch) == (0, 3, 1)
    assert (earliest.error_code, earliest.offset, earliest.leader_epoch) == (0, 0, 0)
    assert (await list_offset(one, -1, epoch=0)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await list_offset(one, -1, epoch=2)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert list((await list_offset(one, -1, version=0)).old_style_offsets) == [3]


async def test_new_leader_does_not_tell_its_end_before_it_is_settled(one: OneBroker, make_order: Any) -> None:
    await one.told()
    log = await lead(one, make_order, isr=(1, 2))
    log.fill(0, 0, 0)
    await lead(one, make_order, epoch=1, isr=(1, 2))
    assert (await list_offset(one, -1)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await list_offset(one, -1, version=4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (await list_offset(one, -2)).offset == 0
    assert (await list_offset(one, -1, replica_id=2)).offset == 3


async def test_init_producer_id(one: OneBroker) -> None:
    one.zk.put(producer_id_block.PATH, None)
    fields = {"transaction_timeout_ms": 1, "producer_id": 5, "producer_epoch": 3}
    answer = await one.ask(ApiKey.INIT_PRODUCER_ID, 3, transactional_id=None, **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)
    refused = await one.ask(ApiKey.INIT_PRODUCER_ID, 3, transactional_id="tx", **fields)
    assert (refused.error_code, refused.producer_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


async def test_describe_cluster(one: OneBroker) -> None:
    await one.told()
    answer = await one.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    assert (answer.cluster_id, answer.controller_id, [b.broker_id for b in answer.brokers]) == (
        "the-cluster",
        2,
        [1, 2],
    )


async def test_controlled_shutdown_of_another_broker(one: OneBroker) -> None:
    answer = await one.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, INTERNAL, broker_id=2, broker_epoch=8)
    assert [(p.topic_name, p.partition_index) for p in answer.remaining_partitions] == [("t2", 8)]
    one.controller.refusal = ErrorCode.STALE_BROKER_EPOCH
    refused = await one.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, INTERNAL, broker_id=2, broker_epoch=8)
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
    stranger = await one.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, CLIENT, broker_id=2, broker_epoch=8)
    assert stranger.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def fetch(one: OneBroker, version: int, context: RequestContext = CLIENT, **fields: Any) -> Any:
    cls = request_class(ApiKey.FETCH)
    entry = cls.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=100, current_leader_epoch=-1, log_start_offset=-1
    )
    names = fields.pop("names", ["orders"])
    request = {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 100,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [cls.FetchTopic(topic=name, partitions=[entry]) for name in names],
        "forgotten_topics_data": [],
        "rack_id": "",
    } | fields
    return await one.ask(ApiKey.FETCH, version, context, **request)


async def test_fetch_reads_to_the_high_watermark_followers_to_the_end(one: OneBroker, make_order: Any) -> None:
    await one.told()
    log = await lead(one, make_order, isr=(1, 2))
    log.fill(0, 0)
    consumer = (await fetch(one, 11)).responses[0].partitions[0]
    assert (consumer.error_code, bytes(consumer.records or b""), consumer.high_watermark) == (0, b"", 0)
    assert consumer.aborted_transactions is None
    committed = (await fetch(one, 11, isolation_level=1)).responses[0].partitions[0]
    assert list(committed.aborted_transactions) == []
    stranger = (await fetch(one, 11, replica_id=2)).responses[0].partitions[0]
    assert stranger.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "a follower on the clients' listener"


async def test_fetch_refusals(one: OneBroker) -> None:
    await one.told()
    answer = await fetch(one, 11, names=["nowhere", "orders"])
    assert {t.topic: t.partitions[0].error_code for t in answer.responses} == {
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "orders": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    assert (await fetch(one, 11, session_id=5, session_epoch=1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    old = (await fetch(one, 3)).responses[0].partitions[0]
    assert old.error_code == ErrorCode.UNSUPPORTED_VERSION


# --- replica manager ---


@pytest.mark.case("LEL-03", "LEL-04")
async def test_judging_orders(one: OneBroker, make_order: Any) -> None:
    await one.told()
    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))

    async def order(**fields: Any) -> ErrorCode:
        return (await one.replicas.leader_and_isr(sender, [make_order(**fields)])).partitions[TP]

    assert await order(epoch=4, replicas=(2, 3)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert TP not in one.replicas.partitions
    assert await order(epoch=4) is ErrorCode.NONE
    assert await order(epoch=4) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert await order(epoch=3) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert await order(leader=9, epoch=5) is ErrorCode.NONE, "a leader that is not alive: answered 0, not followed"
    assert one.replicas.partitions[TP].leader_epoch == 4
    one.logs.offline.add(TP)
    assert await order(epoch=6) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.case("RPM-13")
async def test_high_watermarks_are_checkpointed_from_the_first_order_on(one: OneBroker, make_order: Any) -> None:
    assert not one.replicas._has_orders.is_set()
    await lead(one, make_order)
    assert one.replicas._has_orders.is_set()


async def test_failed_configuration_read_leaves_the_epoch_for_a_retry(
    one: OneBroker, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from klamm.model.errors import SessionExpired

    async def fail(paths: Any) -> Any:
        raise SessionExpired()

    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
    with monkeypatch.context() as patch:
        patch.setattr(one.zk, "get_many", fail)
        patch.setattr(one.replicas._configs, "_patience", 0)
        answer = await one.replicas.leader_and_isr(sender, [make_order(epoch=4)])
    assert answer.partitions[TP] is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await one.replicas.leader_and_isr(sender, [make_order(epoch=4)])).partitions[TP] is ErrorCode.NONE


@pytest.mark.case("LDF-03")
async def test_failed_directory(one: OneBroker, make_order: Any) -> None:
    await one.told()
    await lead(one, make_order)
    one.logs.offline.add(TP)
    one.logs.on_offline("/disk1", [TP])
    await asyncio.sleep(0.01)
    assert (await list_offset(one, -1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    events = [node.data for path, node in one.zk.tree.nodes.items() if "log_dir_event_0" in path]
    assert events == [b'{"version":1,"broker":1,"event":1}']


# --- what every answer has in common ---


async def test_refused_and_accepted_partitions_of_a_topic_are_answered_together(one: OneBroker) -> None:
    await one.told(topic_name="orders", partitions=2)
    await one.told(topic_name="payments", partitions=2)
    batch = build_batch([Record(key=None, value=b"v", timestamp=1)])
    torn = batch[:-1]  # refused before the replica manager sees it
    names = [TopicPartition(topic, p) for topic in ("orders", "payments") for p in (0, 1)]
    entries = [(name, torn if name.partition else batch) for name in names]
    body = b"".join(encode_produce(8, acks=1, timeout_ms=0, entries=entries))
    chunks = await one.handle(CLIENT, RequestHeader(ApiKey.PRODUCE, 8, 1, "x"), memoryview(body))
    assert chunks is not None
    answer = decode_response(ApiKey.PRODUCE, 8, b"".join(chunks))
    assert [(t.name, sorted(p.index for p in t.partition_responses)) for t in answer.responses] == [
        ("orders", [0, 1]),
        ("payments", [0, 1]),
    ]


async def test_the_dispatcher_charges_the_client_once_and_tells_it(one: OneBroker, make_order: Any) -> None:
    await one.told()
    await lead(one, make_order)
    connection = ClientConnection()
    client = CLIENT._replace(connection=connection)
    one.quotas.throttle_ms = 70
    answer = await one.ask(ApiKey.METADATA, 8, client, topics=[], allow_auto_topic_creation=False)
    assert (answer.throttle_time_ms, connection.throttle_ms) == (70, 70)
    batch = build_batch([Record(key=None, value=b"v", timestamp=1)])
    for acks, expected in ((1, 70), (0, None)):
        body = b"".join(encode_produce(8, acks=acks, timeout_ms=0, entries=[(TP, batch)]))
        chunks = await one.handle(client, RequestHeader(ApiKey.PRODUCE, 8, 1, "x"), memoryview(body))
        told = None if chunks is None else decode_response(ApiKey.PRODUCE, 8, b"".join(chunks)).throttle_time_ms
        assert told == expected
    fetched = await fetch(one, 11)
    size = len(fetched.responses[0].partitions[0].records)
    assert fetched.throttle_time_ms == 70
    assert size > 0
    assert one.quotas.charged == [("Metadata", 0), ("Produce", len(body)), ("Produce", len(body)), ("Fetch", size)]


async def test_brokers_are_not_throttled(one: OneBroker, make_order: Any) -> None:
    await one.told()
    await lead(one, make_order, isr=(1, 2))
    one.quotas.throttle_ms = 70
    follower = await fetch(one, 11, context=INTERNAL, replica_id=2)
    assert follower.throttle_time_ms == 0
    await one.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, INTERNAL, broker_id=2, broker_epoch=8)
    assert one.quotas.charged == []
