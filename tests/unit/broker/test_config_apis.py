"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs as a client sees them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from klamm.model.config_levels import Source
from klamm.model.errors import ErrorCode
from klamm.model.settings import ConfigType
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.znodes import config, config_change, topic

from .one_broker import OneBroker, one

__all__ = ["one"]
TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@pytest.fixture
async def orders(one: OneBroker) -> OneBroker:
    """The topic `orders` exists, without overrides."""
    await one.told()
    one.zk.put(topic.path("orders"))
    one.zk.put(config.topic_path("orders"), config.encode({}))
    return one


async def describe(
    one: OneBroker, kind: int, name: str | None, keys: list[str] | None = None, version: int = 4, **options: bool
) -> Any:
    resource = request_class(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    options = {"include_synonyms": False, "include_documentation": False} | options
    answer = await one.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=[resource], **options)
    (result,) = answer.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


async def values(one: OneBroker, kind: int, name: str, source: Source) -> dict[str, str | None]:
    result = await describe(one, kind, name)
    assert result.error_code == 0, result.error_message
    return {entry.name: entry.value for entry in result.configs if entry.config_source == source}


async def change(
    one: OneBroker, kind: int, name: str, *changes: tuple[str, int, str | None], version: int = 1, dry: bool = False
) -> tuple[int, str | None]:
    cls = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS).AlterConfigsResource
    configs = [cls.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = cls(resource_type=kind, resource_name=name, configs=configs)
    answer = await one.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], validate_only=dry)
    (result,) = answer.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result.error_code, result.error_message


async def replace(one: OneBroker, kind: int, name: str, wanted: dict[str, str | None], dry: bool = False) -> int:
    cls = request_class(ApiKey.ALTER_CONFIGS).AlterConfigsResource
    configs = [cls.AlterableConfig(name=key, value=value) for key, value in wanted.items()]
    resource = cls(resource_type=kind, resource_name=name, configs=configs)
    answer = await one.ask(ApiKey.ALTER_CONFIGS, 1, resources=[resource], validate_only=dry)
    return int(answer.responses[0].error_code)


def notified(one: OneBroker) -> list[str]:
    names = one.zk.tree.children(config_change.PARENT)
    return [config_change.decode(name, one.zk.data(config_change.path(name))) for name in sorted(names)]


@pytest.mark.parametrize("version", range(5))
async def test_describe_a_topic(orders: OneBroker, version: int) -> None:
    await change(orders, TOPIC, "orders", ("retention.ms", SET, "604800000"))
    result = await describe(orders, TOPIC, "orders", version=version, include_synonyms=True)
    assert (result.error_code, result.error_message) == (0, None)
    assert len(result.configs) == 26
    by_name = {entry.name: entry for entry in result.configs}
    retention, size = by_name["retention.ms"], by_name["max.message.bytes"]
    assert (retention.value, retention.read_only, retention.is_sensitive) == ("604800000", False, False)
    if version == 0:
        assert (retention.is_default, size.is_default) == (False, True)
        return
    assert (retention.config_source, size.config_source) == (Source.TOPIC, Source.BUILT_IN)
    assert [(s.name, s.value, s.source) for s in size.synonyms] == [("message.max.bytes", "1048588", Source.BUILT_IN)]
    if version >= 3:
        assert retention.config_type == ConfigType.LONG
        assert retention.documentation is None, "it was not asked for"


async def test_describe_what_was_asked_for(orders: OneBroker) -> None:
    result = await describe(orders, TOPIC, "orders", ["retention.ms", "no.such"], include_documentation=True)
    ((name, synonyms, text),) = [(e.name, list(e.synonyms), e.documentation) for e in result.configs]
    assert (name, synonyms) == ("retention.ms", [])
    assert "deleted" in text
    assert len((await describe(orders, TOPIC, "orders", [])).configs) == 26, "an empty list means all, as in Kafka 3"


async def test_describe_this_broker(orders: OneBroker) -> None:
    result = await describe(orders, BROKER, "1")
    by_name = {entry.name: entry for entry in result.configs}
    assert by_name["num.partitions"].read_only and not by_name["log.retention.ms"].read_only
    assert (by_name["num.partitions"].value, by_name["num.partitions"].config_source) == ("2", Source.FILE)
    assert list((await describe(orders, BROKER, "")).configs) == []
    await change(orders, BROKER, "", ("log.retention.ms", SET, "5"))
    await orders.dynamic.load()
    assert await values(orders, BROKER, "", Source.ALL_BROKERS) == {"log.retention.ms": "5"}
    assert await values(orders, BROKER, "1", Source.ALL_BROKERS) == {"log.retention.ms": "5"}
    assert await values(orders, TOPIC, "orders", Source.ALL_BROKERS) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (LOGGER, "2", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (3, "group", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_resources_that_are_not_here(orders: OneBroker, kind: int, name: str, code: ErrorCode) -> None:
    result = await describe(orders, kind, name)
    assert (result.error_code, list(result.configs)) == (code, [])
    assert result.error_message
    assert (await change(orders, kind, name, ("retention.ms", SET, "1")))[0] == code
    if kind != LOGGER:
        assert await replace(orders, kind, name, {"retention.ms": "1"}) == code
    assert notified(orders) == []


async def test_only_who_may(orders: OneBroker) -> None:
    operations = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    orders.guard.denied = {(op, name) for op in operations for name in ("orders", "kafka-cluster", "missing")}
    for kind, name, code in (
        (TOPIC, "orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (TOPIC, "missing", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (BROKER, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (LOGGER, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        assert (await describe(orders, kind, name)).error_code == code
        assert (await change(orders, kind, name, ("root", SET, "INFO")))[0] == code
        assert await replace(orders, kind, name, {}) == code


@pytest.mark.parametrize("version", [0, 1])
async def test_single_keys_change_and_brokers_are_told(orders: OneBroker, version: int) -> None:
    async def stored(*changes: tuple[str, int, str | None]) -> dict[str, str]:
        assert await change(orders, TOPIC, "orders", *changes, version=version) == (0, None)
        return config.decode("", orders.zk.data(config.topic_path("orders")))

    assert await stored(("retention.ms", SET, "5"), ("segment.ms", SET, "7")) == {
        "retention.ms": "5",
        "segment.ms": "7",
    }
    assert await stored(("retention.ms", DELETE, None), ("flush.ms", DELETE, None)) == {"segment.ms": "7"}
    assert await stored(("cleanup.policy", APPEND, "compact,delete")) == {
        "segment.ms": "7",
        "cleanup.policy": "delete,compact",
    }
    assert (await stored(("cleanup.policy", SUBTRACT, "delete")))["cleanup.policy"] == "compact"
    assert notified(orders) == ["topics/orders"] * 4


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("min.compaction.lag.ms", SET, "2"), ("max.compaction.lag.ms", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, "5"), ("cleanup.policy", APPEND, "squash")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_a_change_is_refused_as_a_whole(orders: OneBroker, changes: Any, code: ErrorCode) -> None:
    error, message = await change(orders, TOPIC, "orders", *changes)
    assert error == code and message
    assert config.decode("", orders.zk.data(config.topic_path("orders"))) == {}
    assert notified(orders) == []


async def test_validate_only_writes_nothing(orders: OneBroker) -> None:
    assert await change(orders, TOPIC, "orders", ("retention.ms", SET, "5"), dry=True) == (0, None)
    assert await replace(orders, TOPIC, "orders", {"retention.ms": "5"}, dry=True) == 0
    assert await replace(orders, TOPIC, "orders", {"retention.ms": "x"}, dry=True) == ErrorCode.INVALID_CONFIG
    assert await change(orders, LOGGER, "1", ("root", SET, "FATAL"), dry=True) == (0, None)
    assert logging.root.level != logging.CRITICAL
    assert await values(orders, TOPIC, "orders", Source.TOPIC) == {}
    assert notified(orders) == []


async def test_alter_configs_replaces_everything(orders: OneBroker) -> None:
    await change(orders, TOPIC, "orders", ("retention.ms", SET, "5"))
    assert await replace(orders, TOPIC, "orders", {"segment.ms": "7"}) == 0
    assert await values(orders, TOPIC, "orders", Source.TOPIC) == {"segment.ms": "7"}
    assert await replace(orders, TOPIC, "orders", {"segment.ms": None}) == ErrorCode.INVALID_REQUEST
    assert await replace(orders, LOGGER, "1", {}) == ErrorCode.INVALID_REQUEST


async def test_keys_of_a_newer_kafka_survive_a_change(orders: OneBroker) -> None:
    path = config.topic_path("orders")
    await orders.zk.set(path, config.encode({"remote.storage.enable": "true"}))
    assert await change(orders, TOPIC, "orders", ("retention.ms", SET, "5")) == (0, None)
    assert config.decode("", orders.zk.data(path)) == {"remote.storage.enable": "true", "retention.ms": "5"}
    assert await values(orders, TOPIC, "orders", Source.TOPIC) == {"retention.ms": "5"}


async def test_no_override_outlives_its_topic(orders: OneBroker) -> None:
    await orders.zk.delete(topic.path("orders"))
    await orders.zk.delete(config.topic_path("orders"))
    code, _ = await change(orders, TOPIC, "orders", ("retention.ms", SET, "5"))
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await orders.zk.exists(config.topic_path("orders")) is None


async def test_two_writers_keep_each_others_keys(orders: OneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    read = orders.zk.get_many
    path = config.topic_path("orders")

    async def read_and_be_overtaken(paths: Any) -> Any:
        nodes = await read(paths)
        monkeypatch.undo()
        await orders.zk.set(path, config.encode({"segment.ms": "7"}))
        return nodes

    monkeypatch.setattr(orders.zk, "get_many", read_and_be_overtaken)
    assert await change(orders, TOPIC, "orders", ("retention.ms", SET, "5")) == (0, None)
    assert config.decode("", orders.zk.data(path)) == {"segment.ms": "7", "retention.ms": "5"}


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("1", "log.retention.ms", "5", 0),
        ("", "log.retention.ms", "5", 0),
        ("1", "leader.replication.throttled.rate", "5", 0),
        ("", "leader.replication.throttled.rate", "5", ErrorCode.INVALID_REQUEST),
        ("1", "num.partitions", "5", ErrorCode.INVALID_REQUEST),
        ("1", "log.segment.bytes", "1", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_brokers(orders: OneBroker, name: str, key: str, value: str, code: int) -> None:
    error, message = await change(orders, BROKER, name, (key, SET, value))
    assert (error, bool(message)) == (code, code != 0)
    assert await replace(orders, BROKER, name, {key: value}) == code
    entity = f"brokers/{name or '<default>'}"
    assert notified(orders) == ([] if code else [entity, entity])


async def test_the_levels_of_loggers(orders: OneBroker) -> None:
    name = "klamm.test_config_apis"
    logger = logging.getLogger(name)
    before = (await values(orders, LOGGER, "1", Source.LOGGER))[name]
    try:
        assert await change(orders, LOGGER, "1", (name, SET, "TRACE")) == (0, None)
        assert (await values(orders, LOGGER, "1", Source.LOGGER))[name] == "TRACE"
        assert logger.isEnabledFor(logging.DEBUG)
        assert await change(orders, LOGGER, "1", (name, DELETE, None)) == (0, None)
        assert (await values(orders, LOGGER, "1", Source.LOGGER))[name] == before
    finally:
        logger.setLevel(logging.NOTSET)
    for key, op, value, code in (
        ("no.such.logger", SET, "INFO", ErrorCode.INVALID_CONFIG),
        (name, SET, "LOUD", ErrorCode.INVALID_CONFIG),
        (name, APPEND, "INFO", ErrorCode.INVALID_REQUEST),
        ("root", DELETE, None, ErrorCode.INVALID_REQUEST),
    ):
        assert (await change(orders, LOGGER, "1", (key, op, value)))[0] == code


async def test_a_broken_znode_concerns_its_topic_alone(orders: OneBroker) -> None:
    await orders.zk.set(config.topic_path("orders"), b"{")
    result = await describe(orders, TOPIC, "orders")
    assert result.error_code == ErrorCode.INVALID_CONFIG and config.topic_path("orders") in result.error_message
    assert (await describe(orders, BROKER, "1")).error_code == 0
