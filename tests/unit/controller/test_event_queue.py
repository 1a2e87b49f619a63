"""One consumer, first in first out; merging, clearing, answering; times and states as metrics."""

from __future__ import annotations

import asyncio

import pytest

from klamm.controller.event_queue import ControllerEventQueue
from klamm.controller.events import (
    BrokerChange,
    ControlledShutdown,
    ControllerEvent,
    ControllerState,
    Expire,
    PartitionModifications,
    TopicChange,
    UpdateMetadataResponse,
)
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.telemetry.metrics import MetricsRegistry

MANAGER = ("kafka.controller", "ControllerEventManager")
STATS = ("kafka.controller", "ControllerStats")


class HandSetClock:
    def __init__(self) -> None:
        self.now = 0.0

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now


class Handler:
    def __init__(self) -> None:
        self.handled: list[ControllerEvent] = []
        self.gate: asyncio.Event | None = None
        self.states: list[ControllerState] = []
        self.queue: ControllerEventQueue | None = None

    async def __call__(self, event: ControllerEvent) -> None:
        assert self.queue is not None
        self.states.append(self.queue.state)
        if self.gate is not None:
            await self.gate.wait()
        self.handled.append(event)


def made() -> tuple[ControllerEventQueue, Handler, HandSetClock, MetricsRegistry]:
    handler, clock, metrics = Handler(), HandSetClock(), MetricsRegistry()
    handler.queue = ControllerEventQueue(handler, clock, metrics)
    return handler.queue, handler, clock, metrics


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.case("EVT-01")
async def test_its_metrics_leave_with_it() -> None:
    queue, _, _, metrics = made()
    async with queue.running():
        assert metrics.names()
    assert metrics.names() == []


@pytest.mark.case("EVT-02")
async def test_an_event_without_a_timer_is_handled_like_any_other() -> None:
    queue, handler, _, _ = made()
    async with queue.running():
        event = UpdateMetadataResponse(BrokerId(1), 0, BrokerEpoch(1), frozenset())
        queue.put_nowait(event)
        await turns()
        assert handler.handled == [event]


@pytest.mark.case("EVT-03")
async def test_queue_time_is_what_an_event_waited() -> None:
    queue, handler, clock, metrics = made()
    async with queue.running():
        handler.gate = asyncio.Event()
        queue.put_nowait(TopicChange())
        queue.put_nowait(BrokerChange())
        await turns()
        clock.now = 0.5
        handler.gate.set()
        await turns()
        timer = metrics.timer(*MANAGER, "EventQueueTimeMs")
        assert (timer.count, timer.sum_ms, timer.max_ms) == (2, 500.0, 500.0)


@pytest.mark.case("EVT-04")
async def test_state_while_handling_and_its_timer() -> None:
    queue, handler, _, metrics = made()
    async with queue.running():
        queue.put_nowait(TopicChange())
        await turns()
        assert handler.states == [ControllerState.TOPIC_CHANGE]
        assert queue.state is ControllerState.IDLE
        assert metrics.value(*STATS, "TopicChangeRateAndTimeMs") == 1


async def test_equal_events_that_wait_are_one_but_a_running_one_is_another() -> None:
    queue, handler, _, _ = made()
    async with queue.running():
        handler.gate = asyncio.Event()
        queue.put_nowait(TopicChange())
        await turns()
        for _ in range(3):
            queue.put_nowait(TopicChange())  # the running one may have read before this change
            queue.put_nowait(PartitionModifications("a"))
            queue.put_nowait(PartitionModifications("b"))
        assert len(queue) == 3
        handler.gate.set()
        await turns(30)
        assert handler.handled == [
            TopicChange(),
            TopicChange(),
            PartitionModifications("a"),
            PartitionModifications("b"),
        ]


async def test_clearing_answers_whoever_waits() -> None:
    queue, handler, _, _ = made()
    async with queue.running():
        loop = asyncio.get_running_loop()
        handler.gate = asyncio.Event()
        queue.put_nowait(TopicChange())
        await turns()
        shutdown = ControlledShutdown(BrokerId(1), BrokerEpoch(1), loop.create_future())
        queue.put_nowait(shutdown)
        queue.put_nowait(BrokerChange())
        expire = Expire(loop.create_future())
        queue.clear_and_put(expire)
        with pytest.raises(KafkaError) as refused:
            await shutdown.reply
        assert refused.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
        handler.gate.set()
        await turns()
        assert handler.handled == [TopicChange(), expire]


async def test_what_the_body_raises_reaches_the_caller_as_it_is() -> None:
    queue, _, _, _ = made()
    with pytest.raises(KeyError, match="mine"):
        async with queue.running():
            raise KeyError("mine")


async def test_events_at_the_end_are_answered() -> None:
    queue, handler, _, _ = made()
    loop = asyncio.get_running_loop()
    running = ControlledShutdown(BrokerId(1), BrokerEpoch(1), loop.create_future())
    waiting = ControlledShutdown(BrokerId(2), BrokerEpoch(1), loop.create_future())
    async with queue.running():
        handler.gate = asyncio.Event()
        queue.put_nowait(running)
        queue.put_nowait(waiting)
        await turns()
    for event in (running, waiting):
        with pytest.raises(KafkaError):
            await event.reply
