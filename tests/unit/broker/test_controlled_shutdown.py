"""A broker that stops asks the controller to take its leaderships: how often, whom, and when it stops anyway."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from klamm.broker import controlled_shutdown
from klamm.broker.controlled_shutdown import VERSION, ControlledShutdownClient
from klamm.broker.metadata_cache import MetadataCache
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.control import MetadataUpdate, Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch
from klamm.model.ports import Ports
from klamm.simulation.loop import run_in_virtual_time
from klamm.wire.apis import ApiKey
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request, encode_response, response_class

from .group_node import GroupNode, coordinator

RESPONSE = response_class(ApiKey.CONTROLLED_SHUTDOWN)
Answer = Any
"""A number of partitions that remain, an error code, or what is raised."""
CONFIG = BrokerConfig(
    broker_id=1,
    listeners=("CLIENT://:1", "INTERNAL://:2"),
    listener_security_protocol_map=("CLIENT:PLAINTEXT", "INTERNAL:PLAINTEXT"),
    inter_broker_listener_name="INTERNAL",
    controlled_shutdown_max_retries=3,
    controlled_shutdown_retry_backoff_ms=5_000,
    controller_socket_timeout_ms=30_000,
)


class Controllers:
    """Answers one request after the other; notes when and where each arrived."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, str]] = []
        self.requests: list[tuple[int, int]] = []
        self.timeouts: set[float | None] = set()
        self.open = 0
        self.after_each: Callable[[], None] = lambda: None

    def connection(self, network: Any, host: str, port: int, client_id: str, clock: Any) -> Any:
        outer = self

        class Connection:
            async def connect(self, timeout: float) -> None:
                outer.timeouts.add(timeout)
                outer.open += 1

            async def request(
                self, key: ApiKey, version: int, chunks: Iterable[bytes], *, timeout: float | None = None
            ) -> memoryview:
                outer.timeouts.add(timeout)
                request = decode_request(key, version, b"".join(chunks))
                outer.asked.append((asyncio.get_running_loop().time(), f"{host}:{port}"))
                outer.requests.append((request.broker_id, request.broker_epoch))
                answer = outer.answers.pop(0)
                outer.after_each()
                if isinstance(answer, Exception):
                    raise answer
                return memoryview(encode_response(answered(answer), VERSION))

            async def close(self) -> None:
                outer.open -= 1

        return Connection()


def answered(answer: int | ErrorCode) -> Any:
    error, left = (answer, 0) if isinstance(answer, ErrorCode) else (ErrorCode.NONE, answer)
    remaining = [RESPONSE.RemainingPartition(topic_name="orders", partition_index=p) for p in range(left)]
    return RESPONSE(error_code=error, remaining_partitions=remaining)


async def metadata_of(controller: int) -> MetadataCache:
    brokers = [
        Broker(BrokerId(b), (Endpoint("CLIENT", f"host{b}", 1), Endpoint("INTERNAL", f"host{b}", 2))) for b in (2, 3)
    ]
    metadata = MetadataCache()
    sender = Sender(BrokerId(controller), ControllerEpoch(1), BrokerEpoch(-1))
    await metadata.update(MetadataUpdate(sender, brokers, []))
    return metadata


def shut_down(
    controllers: Controllers, monkeypatch: pytest.MonkeyPatch, metadata: MetadataCache | None = None
) -> tuple[bool, float]:
    """Whether it succeeded, and the seconds that it took."""
    monkeypatch.setattr(controlled_shutdown, "BrokerConnection", controllers.connection)

    async def run() -> tuple[bool, float]:
        known = await metadata_of(2) if metadata is None else metadata
        ports = Ports(None, None, None, random.Random(1))  # type: ignore[arg-type]
        client = ControlledShutdownClient(BrokerId(1), CONFIG, ports, known)
        before = asyncio.get_running_loop().time()
        return await client.run(BrokerEpoch(77)), asyncio.get_running_loop().time() - before

    return run_in_virtual_time(run())


@pytest.mark.parametrize(
    ("answers", "succeeded", "seconds"),
    [
        ([0], True, 0),
        ([2, 0], True, 5),
        ([ErrorCode.STALE_BROKER_EPOCH, ConnectionResetError("gone"), 0], True, 10),
        ([TimeoutError("late"), ProtocolError("cut short"), 0], True, 10),
        ([4, 3, 2], False, 10),
        ([ErrorCode.STALE_CONTROLLER_EPOCH] * 3, False, 10),
    ],
)
def test_the_controller_is_asked_until_nothing_remains(
    answers: list[Answer], succeeded: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a pause between two attempts, and none after the last."""
    controllers = Controllers(*answers)
    assert shut_down(controllers, monkeypatch) == (succeeded, pytest.approx(seconds))
    assert controllers.requests == [(1, 77)] * len(answers)
    assert {address for _, address in controllers.asked} == {"host2:2"}
    assert (controllers.open, controllers.timeouts) == (0, {30.0})


def test_a_controller_that_moves_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = asyncio.run(metadata_of(2))
    controllers = Controllers(ErrorCode.STALE_CONTROLLER_EPOCH, 0)
    controllers.after_each = lambda: setattr(metadata, "controller_id", BrokerId(3))
    assert shut_down(controllers, monkeypatch, metadata)[0]
    assert [address for _, address in controllers.asked] == ["host2:2", "host3:2"]


@pytest.mark.parametrize("controller", [None, BrokerId(4)])
def test_without_a_controller_the_broker_stops_after_the_last_attempt(
    controller: BrokerId | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = asyncio.run(metadata_of(2))
    metadata.controller_id = controller
    controllers = Controllers()
    assert shut_down(controllers, monkeypatch, metadata) == (False, pytest.approx(10))


def test_a_defect_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    controllers = Controllers(RuntimeError("a bug"), 0)
    with pytest.raises(RuntimeError, match="a bug"):
        shut_down(controllers, monkeypatch)
    assert (len(controllers.asked), controllers.open) == (1, 0)


async def _hand_over(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[int]]:
    asked: list[int] = []

    async def run(broker_epoch: BrokerEpoch) -> bool:
        assert c.node.replicas.is_shutting_down, "before the controller moves anything"
        asked.append(broker_epoch)
        return True

    monkeypatch.setattr(c.node._shutdown, "run", run)
    c.node.replicas.broker_epoch = BrokerEpoch(77)
    return await c.node.controlled_shutdown(), asked


@coordinator(led=False)
async def test_a_broker_names_its_epoch(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _hand_over(c, monkeypatch) == (True, [77])


@coordinator(led=False, controlled_shutdown_enable=False)
async def test_a_broker_whose_controlled_shutdown_is_off(c: GroupNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _hand_over(c, monkeypatch) == (False, [])
    assert c.node.replicas.is_shutting_down
