"""Handlers through bytes, without a socket: ApiVersions, Metadata and topics, as clients of each version see them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from klamm.broker.handlers import metadata
from klamm.broker.handlers.dispatch import served
from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import ErrorCode, NodeExists
from klamm.model.ids import BrokerId
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_response
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import broker_id, delete_topics, topic

from .one_broker import CLIENT, OneBroker, one

__all__ = ["one"]


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
    internal = (await one.metadata_of("__consumer_offsets", "__transaction_state")).topics
    assert all(t.is_internal for t in internal), "created although the client did not ask for it"
    assert [t.error_code for t in internal] == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.INVALID_REPLICATION_FACTOR]
    assert len(topic.decode("", one.zk.data(topic.path("__consumer_offsets"))).partitions) == 50
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
    assert not creating.done(), "until this broker knows its leaders"
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
    one.zk.put(broker_id.path(BrokerId(3)), b"junk")  # an unreadable registration still counts as a broker
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
    assert not deleting.done()  # the answer comes when the topic has left the cache
    await one.told(leader=-2)
    assert await deleting == {"orders": ErrorCode.NONE, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    (missing,) = (await one.metadata_of("orders")).topics
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_topics.path("nowhere") not in one.zk.tree.nodes


@pytest.mark.case("DEL-10")
async def test_delete_topics_without_patience(one: OneBroker) -> None:
    await one.told()
    assert await delete(one, "orders", timeout_ms=0) == {"orders": ErrorCode.REQUEST_TIMED_OUT}
    assert delete_topics.path("orders") in one.zk.tree.nodes  # the deletion goes on


@pytest.mark.case("DEL-05")
async def test_a_second_deletion_waits_for_the_first(one: OneBroker) -> None:
    """A topic may be marked already: the request succeeds once the topic is gone."""
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


async def test_topics_that_were_encoded_once_follow_every_update(one: OneBroker) -> None:
    async def seen() -> tuple[int, int, list[int]]:
        (topic,) = (await one.metadata_of("orders")).topics
        (partition,) = topic.partitions
        return partition.error_code, partition.leader_id, list(partition.replica_nodes)

    await one.told(leader=1)
    assert await seen() == await seen() == (ErrorCode.NONE, 1, [1, 2])
    await one.told(leader=2)
    assert await seen() == (ErrorCode.NONE, 2, [1, 2]), "the topic changed"
    await one.told(leader=2, alive=(1,), topic_name="other")
    assert await seen() == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [1, 2]), "only the brokers changed"
    await one.told(leader=2, listeners=("INTERNAL",), topic_name="other")
    assert await seen() == (ErrorCode.LISTENER_NOT_FOUND, -1, [1, 2])


async def test_a_topic_is_encoded_once_for_all_clients(one: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.told(partitions=3)
    encoded: list[str] = []
    real = metadata.encode_topic

    def counting(topic: Any, version: int) -> bytes:
        encoded.append(topic.name)
        return real(topic, version)

    monkeypatch.setattr(metadata, "encode_topic", counting)
    for _ in range(3):
        await one.metadata_of("orders")
    assert encoded == ["orders"]
