"""What a client's request cannot do: leave a wait behind when its client disconnects, choose a directory, ask for two
billion partitions, or end without an answer because a handler failed."""

from __future__ import annotations

import asyncio
import logging
import random
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.admin.placement import PlacementBroker
from klamm.broker.handlers import dispatch
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.purgatory import Purgatory
from klamm.broker.replica_logs import _unfit_for_a_directory
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import Growth, NewTopic, TopicAdmin
from klamm.model.config import TopicConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.requests import ANONYMOUS, ClientConnection, RequestContext
from klamm.net.clock import SystemClock
from klamm.security.quotas import ClientQuotas
from klamm.wire.apis import ApiKey
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.messages import decode_response, encode_request, request_class, response_class
from klamm.wire.server_connection import RequestHeader

CLIENT = RequestContext(ANONYMOUS, "CLIENT", "test", "127.0.0.1:1", False)


async def test_a_client_that_has_left_waits_for_nothing() -> None:
    client = ClientConnection()
    purgatory, cache = Purgatory(), MetadataCache()
    waits = [
        asyncio.create_task(purgatory.wait([TopicPartition("t", 0)], lambda changed: False, 1e6, client)),
        asyncio.create_task(cache.wait_until(lambda: False, 1e6, client)),
    ]
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    client.gone()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waits) == [False, False]
        assert not await purgatory.wait([TopicPartition("t", 0)], lambda changed: False, 1e6, client), (
            "the client was gone before"
        )
    assert len(purgatory) == 0


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../../etc", "a\0b", "x" * 250, "ü"])
def test_no_directory_outside_ours(topic: str) -> None:
    error = _unfit_for_a_directory(TopicPartition(topic, 0))
    assert error is not None and error.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_directories_of_partitions() -> None:
    assert _unfit_for_a_directory(TopicPartition("orders", 0)) is None
    assert _unfit_for_a_directory(TopicPartition("orders", -1)) is not None


async def test_more_partitions_than_one_znode_takes_are_refused_before_they_are_placed(zk: Any, clock: Any) -> None:
    admin = TopicAdmin(
        zk,
        random.Random(1),
        TopicConfigs(zk, clock, TopicConfig(), 1.0),
        partitions_default=1,
        replication_factor_default=1,
        partitions_max=100,
    )
    brokers = [PlacementBroker(BrokerId(1), None)]
    assert len(admin.plan(NewTopic("fits", 100, 1), brokers).replicas) == 100
    with pytest.raises(KafkaError) as refused:
        admin.plan(NewTopic("vast", 2**31 - 1, 1), brokers)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    with pytest.raises(KafkaError) as refused:
        await admin.grow(Growth("fits", 2**31 - 1, None), brokers)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS


async def ask(monkeypatch: pytest.MonkeyPatch, raised: Exception, topics: list[str] | None) -> Any:
    async def failing(*arguments: Any) -> Any:
        raise raised

    monkeypatch.setitem(dispatch.MESSAGE_HANDLERS, ApiKey.METADATA, failing)
    cls = request_class(ApiKey.METADATA)
    named = None if topics is None else [cls.MetadataRequestTopic(name=name) for name in topics]
    body = memoryview(encode_request(cls(topics=named), 5))
    dispatcher = dispatch.Dispatcher(None, ClientQuotas(SystemClock()))  # type: ignore[arg-type]
    chunks = await dispatcher(CLIENT, RequestHeader(ApiKey.METADATA, 5, 1, "test"), body)
    assert chunks is not None
    return decode_response(ApiKey.METADATA, 5, b"".join(chunks))


@pytest.mark.parametrize(
    ("raised", "code", "level"),
    [
        (ZeroDivisionError("ours"), ErrorCode.UNKNOWN_SERVER_ERROR, "ERROR"),
        (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR), ErrorCode.KAFKA_STORAGE_ERROR, "WARNING"),
    ],
)
async def test_a_handler_that_fails_has_an_answer_and_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised: Exception, code: ErrorCode, level: str
) -> None:
    caplog.set_level(logging.INFO)
    answer = await ask(monkeypatch, raised, ["a", "b"])
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", code), ("b", code)]
    assert [record.levelname for record in caplog.records] == [level]
    assert bool(caplog.records[0].exc_info) == (level == "ERROR")


async def test_a_failure_that_no_answer_can_tell_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CloseConnection):
        await ask(monkeypatch, ZeroDivisionError("ours"), None)
    with pytest.raises(ProtocolError):
        await ask(monkeypatch, ProtocolError("theirs"), ["a"])


@pytest.mark.parametrize("privileged", [False, True])
async def test_a_request_with_too_many_entries_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, privileged: bool
) -> None:
    """A frame has room for millions. Brokers are trusted."""
    monkeypatch.setattr(dispatch, "ENTRIES_MAX", 10_000)
    handled: list[int] = []
    response = response_class(ApiKey.OFFSET_FETCH)

    async def handler(_services: Any, _context: Any, _version: int, request: Any) -> Any:
        handled.append(sum(len(topic.partition_indexes) for topic in request.topics))
        return response(topics=[])

    monkeypatch.setitem(dispatch.MESSAGE_HANDLERS, ApiKey.OFFSET_FETCH, handler)
    services: Any = SimpleNamespace(config=SimpleNamespace(shares_listener_with_clients=False))
    dispatcher = dispatch.Dispatcher(services, ClientQuotas(SystemClock()))
    cls = request_class(ApiKey.OFFSET_FETCH)

    async def ask(topics: int) -> None:
        named = [cls.OffsetFetchRequestTopic(name=f"{n}", partition_indexes=list(range(1_000))) for n in range(topics)]
        body = encode_request(cls(group_id="group", topics=named), 7)
        context = CLIENT._replace(privileged=privileged)
        await dispatcher(context, RequestHeader(ApiKey.OFFSET_FETCH, 7, 1, "test"), memoryview(body))

    await ask(9)
    if privileged:
        await ask(10)
    else:
        with pytest.raises(ProtocolError, match="OFFSET_FETCH with more than 10000 entries"):
            await ask(10)  # with those of the topics
    assert handled == [9_000, 10_000][: 1 + privileged]
