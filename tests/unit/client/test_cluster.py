"""The client's way through a cluster: bootstrap, versions, and requests that find the broker they belong to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.client.addresses import Address, addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.client.errors import ClientError, NoBroker
from klamm.client.groups import GroupAdmin
from klamm.model.errors import ErrorCode, KafkaError
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

from .fake_brokers import SERVED, FakeWorld


@asynccontextmanager
async def connected(world: FakeWorld, bootstrap: str = "b1:9092", timeout: float = 5.0) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(addresses(bootstrap), network=world, timeout=timeout).running() as client:
        yield client


def created(code: int = 0, message: str | None = None) -> Any:
    cls = response_class(ApiKey.CREATE_TOPICS)
    return cls(topics=[cls.CreatableTopicResult(name="t", error_code=code, error_message=message)])


@pytest.mark.parametrize("text", ["", ",", "host:", "host:0", "host:65536", "host:x", ":9092"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ClientError, match="HOST:PORT"):
        addresses(text)


async def test_it_learns_the_cluster_from_the_first_address_that_answers() -> None:
    world = FakeWorld()
    async with connected(world, "nowhere:1,b2:9092") as client:
        assert (client.cluster_id, client.controller_id) == ("world", 1)
        assert [broker.address for broker in client.brokers.values()] == [Address("b1", 9092), Address("b2", 9092)]


async def test_an_address_that_does_not_answer_is_reported_at_once() -> None:
    world = FakeWorld()
    world.failures["b1"] = ConnectionRefusedError()
    with pytest.raises(NoBroker) as raised:
        async with connected(world, "b1:9092,nowhere:9092"):
            pass
    assert str(raised.value) == (
        "no broker answers at b1:9092 (the connection was refused), nowhere:9092 (the name does not resolve): "
        "is the cluster running, and is the address right?"
    )


async def test_the_newest_version_that_both_know() -> None:
    world = FakeWorld()
    world.brokers["b1"].served = SERVED | {ApiKey.METADATA: (2, 5)}
    async with connected(world):
        assert [version for key, version, _ in world.brokers["b1"].asked if key is ApiKey.METADATA] == [5]


async def test_no_version_in_common() -> None:
    world = FakeWorld()
    world.brokers["b1"].served = SERVED | {ApiKey.CREATE_TOPICS: (90, 99)}
    async with connected(world) as client:
        with pytest.raises(ClientError, match="b1:9092 serves CreateTopics only versions 90 to 99; klamm knows 0 to"):
            await Admin(client).create_topics({"t": NewTopic(1, 1)})
        with pytest.raises(ClientError, match="serves Fetch not at all"):
            del world.brokers["b1"].served[ApiKey.FETCH]
            (await client.link_to(1))._versions.pop(ApiKey.FETCH)
            (await client.link_to(1)).version_of(ApiKey.FETCH)


async def test_the_controller_is_found_again_when_it_moves() -> None:
    world = FakeWorld()
    one, two = world.brokers.values()

    def moved(*_: Any) -> Any:
        world.controller = 2
        return created(ErrorCode.NOT_CONTROLLER)

    one.answers[ApiKey.CREATE_TOPICS] = moved
    two.answers[ApiKey.CREATE_TOPICS] = lambda *_: created()
    async with connected(world) as client:
        assert await Admin(client).create_topics({"t": NewTopic(1, 1)}) == {"t": None}
    assert (one.keys(), two.keys()) == ([ApiKey.CREATE_TOPICS], [ApiKey.CREATE_TOPICS])


async def test_a_broken_connection_is_made_again() -> None:
    world = FakeWorld(1)
    (broker,) = world.brokers.values()
    answers = iter([ConnectionResetError(), created(ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")])

    def answer(*_: Any) -> Any:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    broker.answers[ApiKey.CREATE_TOPICS] = answer
    async with connected(world) as client:
        outcome = (await Admin(client).create_topics({"t": NewTopic(1, 1)}))["t"]
    assert outcome is not None and (outcome.code, outcome.message) == (ErrorCode.TOPIC_ALREADY_EXISTS, "it is there")
    assert world.connections == 2


async def test_a_broker_that_is_gone_is_named_after_the_timeout() -> None:
    world = FakeWorld()
    world.failures["b2"] = ConnectionRefusedError()
    async with connected(world, timeout=0.2) as client:
        with pytest.raises(ClientError) as raised:
            await Admin(client).log_dirs(2)
    assert str(raised.value) == "DescribeLogDirs to broker 2 failed: broker 2 at b2:9092: the connection was refused"


async def test_a_broker_that_does_not_answer() -> None:
    world = FakeWorld(1)
    world.brokers["b1"].answers[ApiKey.CREATE_TOPICS] = lambda *_: None
    async with connected(world, timeout=0.1) as client:
        with pytest.raises(ClientError, match=r"did not answer CREATE_TOPICS within 0\.1 s"):
            await Admin(client).create_topics({"t": NewTopic(1, 1)})


async def test_the_coordinator_is_found_again_when_it_moves() -> None:
    world = FakeWorld()
    coordinator = [1]

    def find(key: ApiKey, version: int, request: Any) -> Any:
        number = coordinator[0]
        return response_class(key)(node_id=number, host=f"b{number}", port=9092)

    def describe(number: int) -> Any:
        cls = response_class(ApiKey.DESCRIBE_GROUPS)

        def answer(*_: Any) -> Any:
            if number != 2:
                coordinator[0] = 2
                return cls(groups=[cls.DescribedGroup(error_code=ErrorCode.NOT_COORDINATOR)])
            return cls(groups=[cls.DescribedGroup(group_id="g", group_state="Stable")])

        return answer

    for broker in world.brokers.values():
        broker.answers |= {ApiKey.FIND_COORDINATOR: find, ApiKey.DESCRIBE_GROUPS: describe(broker.number)}
    async with connected(world) as client:
        assert (await GroupAdmin(client).describe("g")).state == "Stable"


async def test_an_error_that_does_not_pass_is_not_repeated() -> None:
    world = FakeWorld(1)
    cls = response_class(ApiKey.ELECT_LEADERS)
    (broker,) = world.brokers.values()
    broker.answers[ApiKey.ELECT_LEADERS] = lambda *_: cls(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    async with connected(world) as client:
        with pytest.raises(KafkaError) as raised:
            await Admin(client).elect_leaders(0, None)
    assert raised.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert broker.keys() == [ApiKey.ELECT_LEADERS]


async def test_a_broker_that_knows_no_brokers_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka broker answers before the controller has told it of the cluster."""
    world = FakeWorld()
    whole = world.metadata
    empty_answers = iter(range(3))

    def metadata(request: Any) -> Any:
        answer = whole(request)
        if next(empty_answers, None) is not None:
            answer.brokers = []
        return answer

    monkeypatch.setattr(world, "metadata", metadata)
    async with connected(world) as client:
        assert sorted(await Admin(client).brokers()) == [1, 2]
