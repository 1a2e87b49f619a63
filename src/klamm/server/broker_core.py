"""The parts of one broker that need only ports: session, logs, listeners, broker and controller, in a safe order.

`broker_server` adds what belongs to a process: files for events, HTTP, the monitor of the loop. The simulation runs the
same composition on its own ports.

Start: open the session, read the cluster id, check and lock the directories, recover the logs, bind the ports without
answering yet, register, start the controller, then answer requests. Stop: close the listeners, end fetchers and timers,
flush the logs and mark them clean; then the controller resigns and the session ends, which removes this broker's
znodes. Before that, the owner calls `hand_over`, unless the broker must end at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from klamm.broker.broker import BrokerNode
from klamm.broker.handlers.dispatch import served
from klamm.controller.controller import Controller
from klamm.log.log_manager import LogManager
from klamm.model.brokers import Broker as BrokerValue
from klamm.model.brokers import Endpoint
from klamm.model.byte_budget import ByteBudget
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.errors import ConfigError, NodeExists
from klamm.model.ports import EventSink, Ports
from klamm.net.connections import ConnectionLimits
from klamm.net.listener import Handler, Listener
from klamm.security.authorizer import AllowAll
from klamm.security.quotas import ClientQuotas
from klamm.server.registration import Registration
from klamm.server.zookeeper_connection import connect
from klamm.telemetry.log_file import HEADING
from klamm.telemetry.metrics import MetricsRegistry
from klamm.telemetry.request_times import RequestTimes
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import cluster_id as cluster_id_znode
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

logger = logging.getLogger(__name__)


class FormerSession(Protocol):
    """Remembers the session of this broker for its next process, which ends it (`session_file`)."""

    async def end_former(self, ports: Ports, connect_string: str) -> None: ...

    def remember(self, zk: ZooKeeperClient) -> None: ...

    def forget(self) -> None: ...


class BrokerCore:
    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        events: EventSink,
        metrics: MetricsRegistry,
        *,
        session_in: Callable[[str], FormerSession],
        halt: Callable[[int], object],
        around: Callable[[Handler], Handler] = lambda handle: handle,
        when_locked: Callable[[], object] = lambda: None,
    ) -> None:
        """`session_in` takes a log directory. `halt` ends the process at once, without a clean shutdown. `around` may
        put something in front of the handler of all requests. `when_locked` is called once the directories are locked:
        a second process of the same broker ends before that, with a message about its directory."""
        self.config = config
        self._ports = ports
        self._events = events
        self._metrics = metrics
        self._session_in = session_in
        self._halt = halt
        self._around = around
        self._when_locked = when_locked
        self.id = broker_id_of(config)
        self.endpoints: tuple[Endpoint, ...] = ()
        """The advertised endpoints, with the ports that were actually bound."""
        self.zk: ZooKeeperClient | None = None
        self.broker: BrokerNode | None = None
        self.controller: Controller | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerCore]:
        # Two stacks, because stopping is not the reverse of starting: the controller starts last, but resigns after
        # the data plane is down, so that it can hand over this broker's own leaderships.
        async with AsyncExitStack() as control, AsyncExitStack() as data:
            self.zk = zk = await self._connect(control)
            cluster_id = await self._cluster_id(zk)
            zookeeper = self.config.zookeeper_connect
            logger.info("broker %d of cluster %s, ZooKeeper %s", self.id, cluster_id, zookeeper, extra=HEADING)
            logs = await self._open_logs(data, cluster_id)
            self._when_locked()
            session = await self._take_over(control, logs, zk)
            register = _Registrar(zk, session)
            self.controller = controller = self._controller(zk, register)
            self.broker = broker = self._broker(zk, logs, controller, cluster_id)
            await broker.load_logs()
            listeners = await self._bind(control, broker)
            self.endpoints = self._advertised(listeners)
            config = self.config
            me = BrokerValue(self.id, self.endpoints, config.rack, config.controller_only, logs.recovered)
            await register.first(Registration(zk, self._ports.clock, me), broker)
            logs.write_meta(self.id, cluster_id)
            await data.enter_async_context(logs.running())
            await data.enter_async_context(broker.running())
            for listener in listeners:
                data.push_async_callback(listener.close)  # runs first when stopping
            await control.enter_async_context(controller.running())
            if register.session_id != zk.session_id:
                await controller.after_new_session()  # it began before the controller listened to the session
            for listener in listeners:
                listener.serve()
            yield self

    async def hand_over(self) -> None:
        """A controlled shutdown: the controller moves the leaderships of this broker before it stops."""
        if self.broker is not None:
            await self.broker.controlled_shutdown()

    def _controller(self, zk: ZooKeeperClient, register: _Registrar) -> Controller:
        return Controller(
            config=self.config,
            clock=self._ports.clock,
            network=self._ports.network,
            random=self._ports.random,
            zk=zk,
            events=self._events,
            metrics=self._metrics,
            register_broker=register.again,
        )

    def _broker(self, zk: ZooKeeperClient, logs: LogManager, controller: Controller, cluster_id: str) -> BrokerNode:
        return BrokerNode(
            broker_id=self.id,
            cluster_id=cluster_id,
            config=self.config,
            ports=self._ports,
            zk=zk,
            logs=logs,
            events=self._events,
            metrics=self._metrics,
            authorizer=AllowAll(),
            quotas=ClientQuotas(
                self._ports.clock,
                windows=self.config.quota_window_num,
                window_seconds=self.config.quota_window_size_seconds,
            ),
            controller=controller,
        )

    async def _connect(self, stack: AsyncExitStack) -> ZooKeeperClient:
        zk = await connect(self.config, self._ports)
        stack.push_async_callback(zk.close)
        self._register_session_metrics(zk)
        await zk.ensure_path("/")
        for path in PERSISTENT_PATHS:
            await zk.ensure_path(path)
        return zk

    def _register_session_metrics(self, zk: ZooKeeperClient) -> None:
        read = partial(self._metrics.read, "kafka.server", "SessionExpireListener")
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

    async def _take_over(self, stack: AsyncExitStack, logs: LogManager, zk: ZooKeeperClient) -> FormerSession:
        """End what an earlier process of this broker left in ZooKeeper, and leave the key to this session instead."""
        session = self._session_in(logs.directories.online()[0].path)
        await session.end_former(self._ports, self.config.zookeeper_connect)
        session.remember(zk)

        async def close() -> None:
            await zk.close()
            session.forget()

        stack.push_async_callback(close)
        return session

    async def _open_logs(self, stack: AsyncExitStack, cluster_id: str) -> LogManager:
        logs = LogManager(self._ports.disk, self._ports.clock, self.config, self._ports.random)
        logs.directories.lock()
        stack.callback(logs.directories.unlock)
        logs.directories.verify_meta(self.id, cluster_id)
        logs.on_all_offline = self._all_directories_failed
        return logs

    def _all_directories_failed(self) -> None:
        """As in Kafka: a broker that can store nothing would keep its leaderships and refuse everything."""
        logger.critical(
            "halting broker %d: all log directories have failed (%s)", self.id, ", ".join(self.config.log_dirs)
        )
        self._halt(1)

    async def _bind(self, stack: AsyncExitStack, broker: BrokerNode) -> list[Listener]:
        config = self.config
        if config.shares_listener_with_clients:
            logger.warning(
                "listener %s serves both clients and brokers, so any client can send control requests; "
                "set inter.broker.listener.name to a separate listener",
                config.inter_broker_listener,
            )
        brokers_own = {config.inter_broker_listener, config.control_plane_listener}
        limits = ConnectionLimits()
        await self._use_limits(limits, broker.dynamic_configs.levels.config)
        broker.dynamic_configs.when_changed(partial(self._use_limits, limits))
        requests = ByteBudget(config.queued_max_request_bytes if config.queued_max_request_bytes >= 0 else None)
        times = RequestTimes(self._metrics, {api.key: api.name for api in served()}, self._ports.clock)
        handle, listeners = self._around(broker.handle), []
        for endpoint in config.endpoints:
            listener = Listener(
                self._ports.network,
                endpoint.listener,
                endpoint.host,
                endpoint.port,
                handle,
                privileged=endpoint.listener in brokers_own,
                frame_bytes_max=config.socket_request_max_bytes,
                limits=limits,
                idle_seconds=config.connections_max_idle_ms / 1000 if config.connections_max_idle_ms >= 0 else None,
                is_protected=endpoint.listener in brokers_own and not config.shares_listener_with_clients,
                requests=None if endpoint.listener in brokers_own else requests,
                times=times,
            )
            listener.register_metrics(self._metrics)
            try:
                await listener.bind()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise ConfigError(f"listeners: cannot listen on {endpoint}: {reason}") from None
            stack.push_async_callback(listener.close)
            listeners.append(listener)
        return listeners

    async def _use_limits(self, limits: ConnectionLimits, config: BrokerConfig) -> None:
        """max.connections.per.ip.overrides may name hosts, but connections come from addresses."""
        by_address = {}
        for host, count in config.connections_by_ip().items():
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None)
            except OSError as error:
                raise ConfigError(
                    f"max.connections.per.ip.overrides: {host} has no address: {error.strerror}"
                ) from None
            by_address.update({str(address[0]): count for *_, address in found})
        limits.change(config.max_connections, config.max_connections_per_ip, by_address)

    def _advertised(self, listeners: list[Listener]) -> tuple[Endpoint, ...]:
        """Replace port 0 by the port that was bound, and an empty host by the loopback address."""
        bound = {listener.name: listener.port for listener in listeners}
        return tuple(
            endpoint._replace(host=endpoint.host or "127.0.0.1", port=endpoint.port or bound[endpoint.listener])
            for endpoint in self.config.advertised
        )


class _Registrar:
    """Sets the broker's epoch from its registration, at the start and after each new session."""

    def __init__(self, zk: ZooKeeperClient, session: FormerSession) -> None:
        self._zk = zk
        self._session = session
        self._registration: Registration | None = None
        self._broker: BrokerNode | None = None

    @property
    def session_id(self) -> int | None:
        """The session that holds the registration."""
        return None if self._registration is None else self._registration.session_id

    async def first(self, registration: Registration, broker: BrokerNode) -> None:
        broker.registered(await registration.first())
        self._registration, self._broker = registration, broker

    async def again(self) -> None:
        assert self._registration is not None and self._broker is not None, (
            "the broker registers before the controller starts"
        )
        self._session.remember(self._zk)
        self._broker.registered(await self._registration.again())
