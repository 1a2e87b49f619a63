"""Client quotas in ZooKeeper, and DescribeClientQuotas and AlterClientQuotas as a client sees them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.quota_configs import QuotaConfigs, entity_of, path_of
from klamm.broker.timed import Timed
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.security.authorizer import Operation
from klamm.security.quotas import DEFAULT, FETCH_RATE, PRODUCE_RATE, REQUEST_PERCENTAGE, Entity
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.znodes import config, config_change

from .one_broker import OneBroker, one

__all__ = ["one"]
EXACT, DEFAULTS, ANY = 0, 1, 2
Parts = list[tuple[str, str | None]]


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("users/alice", Entity("alice", None)),
        ("users/CN%3Da%2Fb", Entity("CN=a/b", None)),
        ("users/<default>", Entity(DEFAULT, None)),
        ("users/alice/clients/app", Entity("alice", "app")),
        ("users/<default>/clients/<default>", Entity(DEFAULT, DEFAULT)),
        ("clients/app", Entity(None, "app")),
    ],
)
def test_paths(path: str, entity: Entity) -> None:
    assert entity_of(path) == entity
    assert path_of(entity) == path


def test_other_paths() -> None:
    assert [entity_of(path) for path in ("topics/t", "users", "users/a/b/c", "brokers/1")] == [None] * 4


async def test_quotas_are_loaded_and_follow_changes(one: OneBroker) -> None:
    quotas = QuotaConfigs(one.zk, one.client_quotas, BrokerConfig(quota_producer_default=7))
    one.zk.put("/config/users/alice", config.encode({PRODUCE_RATE: "10", "SCRAM-SHA-256": "secret"}))
    one.zk.put("/config/users/alice/clients/app", config.encode({FETCH_RATE: "20.5"}))
    one.zk.put("/config/clients/bad", b"{")
    one.zk.put("/config/clients/zero", config.encode({FETCH_RATE: "0", PRODUCE_RATE: "many"}))
    await quotas.load()
    assert one.client_quotas.limits == {
        Entity("alice", None): {PRODUCE_RATE: 10},
        Entity("alice", "app"): {FETCH_RATE: 20.5},
        Entity(None, DEFAULT): {PRODUCE_RATE: 7},
    }
    one.zk.put("/config/clients/<default>", config.encode({PRODUCE_RATE: "8"}))
    await one.zk.set("/config/users/alice", config.encode({}))
    for path in ("clients/<default>", "users/alice", "topics/t", "users/gone"):
        await quotas.apply(path)
    assert one.client_quotas.limits == {
        Entity("alice", "app"): {FETCH_RATE: 20.5},
        Entity(None, DEFAULT): {PRODUCE_RATE: 8},
    }
    await one.zk.delete("/config/clients/<default>")
    await quotas.apply("clients/<default>")
    assert one.client_quotas.limits[Entity(None, DEFAULT)] == {PRODUCE_RATE: 7}


async def describe(one: OneBroker, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    cls = request_class(ApiKey.DESCRIBE_CLIENT_QUOTAS).ComponentData
    wanted = [cls(entity_type=kind, match_type=match, match=name) for kind, match, name in components]
    return await one.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, components=wanted, strict=strict)


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {"a", "a+x", "*", "*+*", "x", "y"}),
        ([], True, set()),
        ([("user", EXACT, "alice")], False, {"a", "a+x"}),
        ([("user", EXACT, "alice")], True, {"a"}),
        ([("user", DEFAULTS, None)], False, {"*", "*+*"}),
        ([("user", ANY, None)], True, {"a", "*"}),
        ([("client-id", ANY, None)], False, {"a+x", "*+*", "x", "y"}),
        ([("client-id", EXACT, "x")], True, {"x"}),
        ([("user", ANY, None), ("client-id", EXACT, "x")], True, {"a+x"}),
        ([("user", EXACT, "nobody")], False, set()),
    ],
)
async def test_filters(one: OneBroker, components: Any, strict: bool, expected: set[str]) -> None:
    entities = {
        "a": Entity("alice", None),
        "a+x": Entity("alice", "x"),
        "*": Entity(DEFAULT, None),
        "*+*": Entity(DEFAULT, DEFAULT),
        "x": Entity(None, "x"),
        "y": Entity(None, "y"),
    }
    for number, entity in enumerate(entities.values(), 1):
        one.client_quotas.set_limits(entity, {PRODUCE_RATE: number})
    answer = await describe(one, *components, strict=strict)
    assert (answer.error_code, answer.error_message) == (0, None)
    numbers = {int(value.value): value.key for entry in answer.entries for value in entry.values}
    names = list(entities)
    assert {names[number - 1] for number in numbers} == expected
    assert set(numbers.values()) <= {PRODUCE_RATE}


async def test_the_parts_of_an_entity(one: OneBroker) -> None:
    one.client_quotas.set_limits(Entity(DEFAULT, "x"), {PRODUCE_RATE: 5, REQUEST_PERCENTAGE: 0.5})
    (entry,) = (await describe(one)).entries
    assert [(part.entity_type, part.entity_name) for part in entry.entity] == [("user", None), ("client-id", "x")]
    assert {value.key: value.value for value in entry.values} == {PRODUCE_RATE: 5, REQUEST_PERCENTAGE: 0.5}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 9, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_that_are_refused(one: OneBroker, components: Any, code: ErrorCode) -> None:
    answer = await describe(one, *components)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message


async def alter(
    one: OneBroker, parts: Parts, *ops: tuple[str, float | None], dry: bool = False
) -> tuple[int, str | None]:
    cls = request_class(ApiKey.ALTER_CLIENT_QUOTAS).EntryData
    entry = cls(
        entity=[cls.EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
        ops=[cls.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )
    answer = await one.ask(ApiKey.ALTER_CLIENT_QUOTAS, 0, entries=[entry], validate_only=dry)
    (result,) = answer.entries
    assert [(part.entity_type, part.entity_name) for part in result.entity] == parts
    return result.error_code, result.error_message


def notified(one: OneBroker) -> list[str]:
    names = one.zk.tree.children(config_change.PARENT)
    return [config_change.decode(name, one.zk.data(config_change.path(name))) for name in sorted(names)]


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ([("user", "alice")], "users/alice"),
        ([("user", "CN=a")], "users/CN%3Da"),
        ([("user", None)], "users/<default>"),
        ([("client-id", "app")], "clients/app"),
        ([("client-id", None), ("user", "bob")], "users/bob/clients/<default>"),
    ],
)
async def test_set_and_remove(one: OneBroker, parts: Parts, path: str) -> None:
    def stored() -> dict[str, str]:
        return config.decode(path, one.zk.data(f"/config/{path}"))

    assert await alter(one, parts, (PRODUCE_RATE, 1024.0), (REQUEST_PERCENTAGE, 12.5)) == (0, None)
    assert stored() == {PRODUCE_RATE: "1024", REQUEST_PERCENTAGE: "12.5"}
    assert await alter(one, parts, (PRODUCE_RATE, None), (FETCH_RATE, 3.0)) == (0, None)
    assert stored() == {FETCH_RATE: "3", REQUEST_PERCENTAGE: "12.5"}
    assert await alter(one, parts, (FETCH_RATE, 9.0), dry=True) == (0, None)
    assert stored()[FETCH_RATE] == "3"
    assert notified(one) == [path, path]


async def test_credentials_of_the_user_stay(one: OneBroker) -> None:
    one.zk.put("/config/users/alice", config.encode({"SCRAM-SHA-256": "secret"}))
    assert await alter(one, [("user", "alice")], (PRODUCE_RATE, 1.0)) == (0, None)
    stored = config.decode("", one.zk.data("/config/users/alice"))
    assert stored == {"SCRAM-SHA-256": "secret", PRODUCE_RATE: "1"}


@pytest.mark.parametrize(
    ("parts", "ops", "code"),
    [
        ([], [(PRODUCE_RATE, 1.0)], ErrorCode.INVALID_REQUEST),
        ([("user", "")], [(PRODUCE_RATE, 1.0)], ErrorCode.INVALID_REQUEST),
        ([("user", "a"), ("user", "b")], [(PRODUCE_RATE, 1.0)], ErrorCode.INVALID_REQUEST),
        ([("ip", "1.2.3.4")], [(PRODUCE_RATE, 1.0)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", "a")], [("speed", 1.0)], ErrorCode.INVALID_REQUEST),
        ([("user", "a")], [(PRODUCE_RATE, 1.5)], ErrorCode.INVALID_REQUEST),
        ([("user", "a")], [(PRODUCE_RATE, -1.0)], ErrorCode.INVALID_REQUEST),
        ([("user", "a")], [(PRODUCE_RATE, 1.0), (PRODUCE_RATE, 2.0)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_changes_that_are_refused(one: OneBroker, parts: Parts, ops: Any, code: ErrorCode) -> None:
    error, message = await alter(one, parts, *ops)
    assert error == code
    assert message
    assert notified(one) == []


async def test_only_who_may(one: OneBroker) -> None:
    one.guard.denied = {(op, "kafka-cluster") for op in (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)}
    assert (await describe(one)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (await alter(one, [("user", "a")], (PRODUCE_RATE, 1.0)))[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_the_time_of_steps_without_the_waits(clock: Any) -> None:
    async def work() -> str:
        clock.advance(1)
        await asyncio.sleep(0)
        clock.advance(2)
        try:
            await waiting
        except ValueError:
            clock.advance(4)
        return "done"

    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def meanwhile() -> None:
        clock.advance(100)
        await asyncio.sleep(0)
        clock.advance(100)
        waiting.set_exception(ValueError())

    instants: Any = SimpleNamespace(instant=clock.monotonic)  # the loop's time stands still during a step
    timed = Timed(work(), instants)

    async def wait() -> str:
        return await timed

    result, _ = await asyncio.gather(wait(), meanwhile())
    assert (result, timed.seconds) == ("done", 7)


async def test_time_is_charged_if_a_quota_limits_it(one: OneBroker) -> None:
    await one.told()
    seconds: list[float] = []
    one.quotas.throttle = lambda context, api, size, spent=0.0: seconds.append(spent) or 0  # type: ignore[assignment,func-returns-value]
    await one.metadata_of("orders")
    one.quotas.counts_time = True
    clock: Any = one.replicas.clock
    may = one.guard.authorize

    def slowly(*arguments: Any) -> bool:
        clock.advance(3)
        return may(*arguments)

    one.guard.authorize = slowly  # type: ignore[method-assign]
    await one.metadata_of("orders")
    assert seconds == [0.0, 3.0]
