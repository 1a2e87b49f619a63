"""The parts of one broker process: session, logs, listeners, broker and controller, started in a safe order.

Start: open the session, read the cluster id, check and lock the directories, recover the logs, bind the ports without
answering yet, register, start the controller, then answer requests. Stop: hand over leaderships, close the listeners,
end fetchers and timers, flush the logs and mark them clean; then the controller resigns and the session ends, which
removes this broker's znodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from klamm.broker.broker import BrokerNode
from klamm.controller.controller import Controller
from klamm.log.log_manager import LogManager
from klamm.model.brokers import Broker as BrokerValue
from klamm.model.brokers import Endpoint
from klamm.model.config import BrokerConfig, broker_id_of, parse_address
from klamm.model.errors import ConfigError, ConnectionLoss, NodeExists
from klamm.model.ports import Ports
from klamm.net.connections import ConnectionLimits
from klamm.net.listener import Listener
from klamm.security.authorizer import AllowAll
from klamm.security.quotas import Unlimited
from klamm.server.http import HttpListener
from klamm.server.registration import Registration
from klamm.telemetry.loop_monitor import LoopMonitor
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.state_changes import StateChangeWriter
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import cluster_id as cluster_id_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

logger = logging.getLogger(__name__)


class BrokerServer:
    def __init__(self, config: BrokerConfig, ports: Ports) -> None:
        self.config = config
        self._ports = ports
        self.id = broker_id_of(config)
        self.metrics = MetricsRegistry()
        self.endpoints: tuple[Endpoint, ...] = ()
        """The advertised endpoints, with the ports that were actually bound."""
        self.http: HttpListener | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerServer]:
        # Two stacks, because stopping is not the reverse of starting: the controller starts last, but resigns after
        # the data plane is down, so that it can hand over this broker's own leaderships.
        async with AsyncExitStack() as control, AsyncExitStack() as data:
            events = await control.enter_async_context(self._event_writer().running())
            zk = await self._connect(control)
            cluster_id = await self._cluster_id(zk)
            logs = await self._open_logs(data, cluster_id)
            register = _Registrar()
            controller = Controller(
                config=self.config,
                clock=self._ports.clock,
                network=self._ports.network,
                random=self._ports.random,
                zk=zk,
                events=events,
                metrics=self.metrics,
                register_broker=register.again,
            )
            broker = BrokerNode(
                broker_id=self.id,
                cluster_id=cluster_id,
                config=self.config,
                ports=self._ports,
                zk=zk,
                logs=logs,
                events=events,
                metrics=self.metrics,
                authorizer=AllowAll(),
                quotas=Unlimited(),
                controller=controller,
            )
            self._bind_http(control)
            await broker.load_logs()
            listeners = await self._bind(control, broker)
            self.endpoints = self._advertised(listeners)
            me = BrokerValue(self.id, self.endpoints, self.config.rack, self.config.controller_only)
            await register.first(Registration(zk, self._ports.clock, me), broker)
            await data.enter_async_context(logs.running())
            await data.enter_async_context(broker.running())
            for listener in listeners:
                data.push_async_callback(listener.close)  # runs first when stopping
            monitor = LoopMonitor(self._ports.clock, self.id, events, self.metrics)
            _own_task(data, asyncio.create_task(monitor.run(), name="loop-monitor"))
            await control.enter_async_context(controller.running())
            for listener in listeners:
                listener.serve()
            if self.http is not None:
                await data.enter_async_context(self.http.running())
            yield self
            await broker.controlled_shutdown()

    def _event_writer(self) -> StateChangeWriter:
        beside = os.path.dirname(os.path.abspath(self.config.log_dirs[0]))
        return StateChangeWriter(self.config.state_change_log_dir or beside, self.id, self._ports.clock)

    async def _connect(self, stack: AsyncExitStack) -> ZooKeeperClient:
        config = self.config
        zk = ZooKeeperClient(
            self._ports.network,
            self._ports.clock,
            self._ports.random,
            config.zookeeper_connect,
            config.zookeeper_session_timeout_ms,
            connection_timeout_ms=max(config.zookeeper_connection_timeout_ms, 0) or None,
        )
        try:
            await zk.start()
        except ConnectionLoss as error:
            raise ConfigError(f"zookeeper.connect={config.zookeeper_connect}: {error}") from None
        stack.push_async_callback(zk.close)
        self._register_session_metrics(zk)
        await zk.ensure_path("/")
        for path in PERSISTENT_PATHS:
            await zk.ensure_path(path)
        return zk

    def _register_session_metrics(self, zk: ZooKeeperClient) -> None:
        read = partial(self.metrics.read, "kafka.server", "SessionExpireListener")
        read("ZooKeeperDisconnectsPerSec", lambda: zk.disconnections)
        read("ZooKeeperExpiresPerSec", lambda: zk.expirations)
        for never_yet in ("AuthFailures", "ReadOnlyConnects", "SaslAuthentications"):
            read(f"ZooKeeper{never_yet}PerSec", lambda: 0)

    async def _cluster_id(self, zk: ZooKeeperClient) -> str:
        path = cluster_id_znode.PATH
        await zk.ensure_path(path.rpartition("/")[0])
        if await zk.exists(path) is None:
            try:
                await zk.create(path, cluster_id_znode.encode(cluster_id_znode.generate(self._ports.random)))
            except NodeExists:
                pass  # another broker of a new cluster created it first
        return cluster_id_znode.decode(path, (await zk.get(path)).data)

    async def _open_logs(self, stack: AsyncExitStack, cluster_id: str) -> LogManager:
        logs = LogManager(self._ports.disk, self._ports.clock, self.config, self._ports.random)
        logs.directories.lock()
        stack.callback(logs.directories.unlock)
        logs.directories.verify_and_write_meta(self.id, cluster_id)
        return logs

    def _bind_http(self, stack: AsyncExitStack) -> None:
        if self.config.http_listener:
            self.http = HttpListener(*parse_address("klamm.http.listener", self.config.http_listener), self.metrics)
            stack.callback(self.http.close)

    async def _bind(self, stack: AsyncExitStack, broker: BrokerNode) -> list[Listener]:
        config = self.config
        if config.shares_listener_with_clients:
            logger.warning(
                "listener %s serves both clients and brokers, so any client can send control requests; "
                "set inter.broker.listener.name to a separate listener",
                config.inter_broker_listener,
            )
        brokers_own = {config.inter_broker_listener, config.control_plane_listener}
        limits = ConnectionLimits(config.max_connections, config.max_connections_per_ip, await self._by_address())
        listeners = []
        for endpoint in config.endpoints:
            listener = Listener(
                self._ports.network,
                endpoint.listener,
                endpoint.host,
                endpoint.port,
                broker.handle,
                privileged=endpoint.listener in brokers_own,
                frame_bytes_max=config.socket_request_max_bytes,
                limits=limits,
                idle_seconds=config.connections_max_idle_ms / 1000 if config.connections_max_idle_ms >= 0 else None,
                is_protected=endpoint.listener in brokers_own and not config.shares_listener_with_clients,
            )
            listener.register_metrics(self.metrics)
            try:
                await listener.bind()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise ConfigError(f"listeners: cannot listen on {endpoint}: {reason}") from None
            stack.push_async_callback(listener.close)
            listeners.append(listener)
        return listeners

    async def _by_address(self) -> dict[str, int]:
        """Resolve max.connections.per.ip.overrides: it may name hosts, but connections come from addresses."""
        limits = {}
        for host, count in self.config.connections_by_ip().items():
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None)
            except OSError as error:
                raise ConfigError(
                    f"max.connections.per.ip.overrides: {host} has no address: {error.strerror}"
                ) from None
            limits.update({str(address[0]): count for *_, address in found})
        return limits

    def _advertised(self, listeners: list[Listener]) -> tuple[Endpoint, ...]:
        """Replace port 0 by the port that was bound, and an empty host by the loopback address."""
        bound = {listener.name: listener.port for listener in listeners}
        return tuple(
            endpoint._replace(host=endpoint.host or "127.0.0.1", port=endpoint.port or bound[endpoint.listener])
            for endpoint in self.config.advertised
        )


class _Registrar:
    """Sets the broker's epoch from its registration, at the start and after each new session."""

    def __init__(self) -> None:
        self._registration: Registration | None = None
        self._broker: BrokerNode | None = None

    async def first(self, registration: Registration, broker: BrokerNode) -> None:
        broker.registered(await registration.first())
        self._registration, self._broker = registration, broker

    async def again(self) -> None:
        assert self._registration is not None and self._broker is not None, (
            "the broker registers before the controller starts"
        )
        self._broker.registered(await self._registration.again())


def _own_task(stack: AsyncExitStack, task: asyncio.Task[None]) -> None:
    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
