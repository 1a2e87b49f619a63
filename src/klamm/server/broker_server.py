"""One broker process: the broker (`broker_core`) with what belongs to a process: event files, HTTP, a loop monitor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from klamm.model.brokers import Endpoint
from klamm.model.config import BrokerConfig, broker_id_of, parse_address
from klamm.model.ports import EventSink, Ports
from klamm.server.broker_core import BrokerCore
from klamm.server.http import HttpListener
from klamm.server.session_file import SessionFile
from klamm.telemetry.loop_monitor import LoopMonitor
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.state_changes import StateChangeWriter
from klamm.zookeeper.client.session import SessionState

STARTING, RUNNING, STOPPING = 1, 3, 6
"""Kafka's numbers for the states of a broker."""


class BrokerServer:
    def __init__(self, config: BrokerConfig, ports: Ports, halt: Callable[[int], object] = os._exit) -> None:
        """`halt` ends the process at once, without a clean shutdown."""
        self.config = config
        self._ports = ports
        self._halt = halt
        self.id = broker_id_of(config)
        self.metrics = MetricsRegistry()
        self.http: HttpListener | None = None
        self._core: BrokerCore | None = None
        self._state = STARTING

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The advertised endpoints, with the ports that were actually bound."""
        return () if self._core is None else self._core.endpoints

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerServer]:
        async with AsyncExitStack() as stack:
            events = await stack.enter_async_context(self._event_writer().running())
            self._core = core = BrokerCore(
                self.config,
                self._ports,
                events,
                self.metrics,
                session_in=SessionFile,
                halt=self._halt,
                when_locked=lambda: self._bind_http(stack),
            )
            await stack.enter_async_context(core.running())
            self._watch_loop(stack, events)
            if self.http is not None:
                await stack.enter_async_context(self.http.running())
            self._state = RUNNING
            yield self
            self._state = STOPPING
            await core.hand_over()

    def _event_writer(self) -> StateChangeWriter:
        directories = (self.config.state_change_log_dir,) if self.config.state_change_log_dir else self.config.log_dirs
        return StateChangeWriter(directories, self.id, self._ports.clock)

    def _bind_http(self, stack: AsyncExitStack) -> None:
        self.metrics.read("kafka.server", "KafkaServer", "BrokerState", lambda: self._state)
        if self.config.http_listener:
            address = parse_address("klamm.http.listener", self.config.http_listener)
            self.http = HttpListener(*address, self.metrics, self._not_ready)
            stack.callback(self.http.close)

    def _not_ready(self) -> str:
        if self._state == STOPPING:
            return "the broker is stopping"
        zk = None if self._core is None else self._core.zk
        if zk is None:
            return "the broker is starting"
        return "" if zk.state is SessionState.CONNECTED else f"the ZooKeeper session is {zk.state.value}"

    def _watch_loop(self, stack: AsyncExitStack, events: EventSink) -> None:
        self.metrics.read("klamm.server", "EventLoop", "TaskCount", lambda: len(asyncio.all_tasks()))
        monitor = LoopMonitor(self._ports.clock, self.id, events, self.metrics)
        task = asyncio.create_task(monitor.run(), name="loop-monitor")

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)
