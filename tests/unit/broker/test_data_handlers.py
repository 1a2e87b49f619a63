"""Handlers through bytes, without a socket: offsets, fetches, producer ids, orders, and what all answers share."""

from __future__ import annotations

import asyncio
import struct
import zlib
from typing import Any

import pytest
from kafka.record import MemoryRecords

from klamm.log.log_results import ReadResult
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.control import Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.requests import ClientConnection, RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.compression import Codec
from klamm.wire.messages import decode_response, request_class
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.records import Record, build_batch, iter_records
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import producer_id_block

from .one_broker import CLIENT, INTERNAL, TP, OneBroker, lead, one

__all__ = ["one"]


# --- offsets, producer ids, cluster, control ---


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
    assert (refused.error_code, refused.producer_id) == (ErrorCode.NOT_COORDINATOR, -1)


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
    assert (old.error_code, old.high_watermark) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1), (3, 1)])
async def test_old_consumers_get_old_message_formats(
    one: OneBroker, make_order: Any, version: int, magic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.told()
    log = (await lead(one, make_order)).fill(0)
    assert one.replicas.partitions[TP].maybe_increment_high_watermark()
    stored = build_batch([Record(b"k", b"v", 5)])

    def read(*_: Any, **__: Any) -> ReadResult:
        return ReadResult(stored, 0, 1)

    monkeypatch.setattr(log, "read", read)
    for replica_id in (-1, 2):  # a broker of that age cannot be in the cluster
        found = (await fetch(one, version, replica_id=replica_id)).responses[0].partitions[0]
        assert (found.error_code, found.records[16]) == (0, magic)
        assert [(record.key, record.value) for record in MemoryRecords(found.records).next_batch()] == [(b"k", b"v")]
    stored = build_batch([Record(b"k", b"v", 5)], codec=Codec.ZSTD)
    refused = (await fetch(one, version)).responses[0].partitions[0]
    assert (refused.error_code, bytes(refused.records or b"")) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
    log.config = TopicConfig(message_downconversion_enable=False)
    forbidden = (await fetch(one, version)).responses[0].partitions[0]
    assert (forbidden.error_code, bytes(forbidden.records or b"")) == (ErrorCode.UNSUPPORTED_VERSION, b"")
    assert (await fetch(one, 4)).responses[0].partitions[0].error_code == 0


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
    assert await order(leader=9, epoch=5) is ErrorCode.NONE, "a dead leader is not followed, and that is not an error"
    assert one.replicas.partitions[TP].leader_epoch == 4
    one.logs.offline[TP] = "broken"
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
        patch.setattr(one.replicas._replica_logs._configs, "_patience", 0)
        answer = await one.replicas.leader_and_isr(sender, [make_order(epoch=4)])
    assert answer.partitions[TP] is ErrorCode.UNKNOWN_SERVER_ERROR
    assert (await one.replicas.leader_and_isr(sender, [make_order(epoch=4)])).partitions[TP] is ErrorCode.NONE


@pytest.mark.case("LDF-03")
async def test_failed_directory(one: OneBroker, make_order: Any) -> None:
    await one.told()
    await lead(one, make_order)
    one.logs.offline[TP] = "broken"
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
    assert (fetched.throttle_time_ms, list(fetched.responses)) == (70, []), "throttled, so without data"
    *charged, (api, size) = one.quotas.charged
    assert charged == [("Metadata", 0), ("Produce", len(body)), ("Produce", len(body))]
    assert api == "Fetch"
    assert size > 0


@pytest.mark.case("FRQ-01")
async def test_a_fetch_from_a_broker_without_a_replica(one: OneBroker) -> None:
    await one.told(leader=2)
    answer = await fetch(one, 11)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.case("FRQ-03")
async def test_list_offsets_elsewhere(one: OneBroker, make_order: Any) -> None:
    await one.told(leader=2)
    sender = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
    one.replicas.is_shutting_down = True  # it obeys, but fetches nothing
    await one.replicas.leader_and_isr(sender, [make_order(leader=2, epoch=3, isr=(1, 2), replicas=(1, 2))])
    log = one.logs.kept[TP]
    log.fill(0, 0, 0)
    for timestamp in (-1, -2):
        assert (await list_offset(one, timestamp, name="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await list_offset(one, timestamp)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await list_offset(one, timestamp, replica_id=2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    debugging = await list_offset(one, -1, replica_id=-2)
    assert (debugging.error_code, debugging.offset) == (0, 3), "up to the log end"
    for epoch, code in ((-1, 0), (3, 0), (2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        assert (await list_offset(one, -2, replica_id=-2, epoch=epoch)).error_code == code


@pytest.mark.case("FRQ-09")
async def test_too_few_replicas_and_internal_topics(one: OneBroker, make_order: Any) -> None:
    await one.told()
    log = await lead(one, make_order)
    log.config = TopicConfig(min_insync_replicas=3)
    batch = build_batch([Record(key=None, value=b"v", timestamp=1)])

    async def produced(name: TopicPartition, acks: int, client_id: str = "x") -> int:
        body = b"".join(encode_produce(8, acks=acks, timeout_ms=0, entries=[(name, batch)]))
        context = CLIENT._replace(client_id=client_id)
        chunks = await one.handle(context, RequestHeader(ApiKey.PRODUCE, 8, 1, client_id), memoryview(body))
        assert chunks is not None
        answer = decode_response(ApiKey.PRODUCE, 8, b"".join(chunks))
        return int(answer.responses[0].partition_responses[0].error_code)

    assert await produced(TP, -1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert await produced(TP, 1) == ErrorCode.NONE
    internal = TopicPartition("__consumer_offsets", 0)
    assert await produced(internal, 1) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await produced(internal, 1, "__admin_client") != ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_produce_with_an_old_message_format(one: OneBroker, make_order: Any, version: int) -> None:
    await one.told()
    log = await lead(one, make_order)
    body = struct.pack(">bbqii", 1, 0, 77, -1, 1) + b"v"
    message = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    for data, code in ((message, 0), (message[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE)):
        chunks = encode_produce(version, acks=1, timeout_ms=0, entries=[(TP, data)])
        header = RequestHeader(ApiKey.PRODUCE, version, 1, "old")
        answer = await one.handle(CLIENT, header, memoryview(b"".join(chunks)))
        assert answer is not None
        found = decode_response(ApiKey.PRODUCE, version, b"".join(answer)).responses[0].partition_responses[0]
        assert found.error_code == code
    stored = [(record.timestamp, record.value) for record in iter_records(log.appended[-1])]
    assert stored == [(77, b"v")]


async def test_brokers_are_not_throttled_on_a_shared_listener(
    one: OneBroker, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerConfig, "shares_listener_with_clients", True)
    await one.told()
    await lead(one, make_order, isr=(1, 2))
    one.quotas.throttle_ms = 70
    assert (await fetch(one, 11, context=INTERNAL, replica_id=2)).throttle_time_ms == 0
    client = await one.ask(ApiKey.METADATA, 8, INTERNAL, topics=[], allow_auto_topic_creation=False)
    assert client.throttle_time_ms == 70


async def test_brokers_are_not_throttled(one: OneBroker, make_order: Any) -> None:
    await one.told()
    await lead(one, make_order, isr=(1, 2))
    one.quotas.throttle_ms = 70
    follower = await fetch(one, 11, context=INTERNAL, replica_id=2)
    assert follower.throttle_time_ms == 0
    await one.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, INTERNAL, broker_id=2, broker_epoch=8)
    assert one.quotas.charged == []
