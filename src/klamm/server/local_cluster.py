"""A cluster on this machine: one ZooKeeper and several broker processes, as `klamm up` and the test fixture run it.

Brokers are separate processes, so that `kill -9` really kills one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from klamm.model.errors import ConfigError
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import HOST, KlammBroker
from klamm.server.server_process import READY_TIMEOUT, ServerNotStarted, ServerProcess, klamm_command
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.zookeeper.server.child import reserve_port
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.server.embedded import available as embedded_available

METADATA_VERSION = 7

Properties = Mapping[str, str]
OWN_DIRECTORY = "{directory}"
"""A placeholder in a property for the directory of the broker that gets it."""
ON_ONE_MACHINE = {
    # A controller that does not answer here is gone, not slow, so a broker that stops need not wait long for it.
    "controlled.shutdown.retry.backoff.ms": "200",
    "klamm.fast.failover": "true",
}


class LocalCluster:
    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        zookeeper: str = "",
        port: int = 0,
        durable: bool = False,
        http: bool = False,
        properties: Properties | None = None,
    ) -> None:
        self._directory = directory.absolute()
        self._http = http
        self._broker_count = brokers
        self._wanted_zookeeper = zookeeper
        self._port = port
        self._durable = durable
        self._properties = {**ON_ONE_MACHINE, **(properties or {})}
        self.zookeeper = ""
        """HOST:PORT[/chroot], known once started."""
        self.zookeeper_kind = ""
        self.brokers: dict[int, KlammBroker] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LocalCluster]:
        """On entry a controller is elected and every broker answers Metadata. On exit every process is gone."""
        async with self._running_zookeeper() as address:
            self.zookeeper = address
            for broker_id in range(1, self._broker_count + 1):
                self.brokers[broker_id] = self._broker(broker_id)
            try:
                await self._start_all()
                await self.wait_until_ready()
                yield self
            finally:
                await self._stop_all()

    def _broker(self, broker_id: int) -> KlammBroker:
        directory = self._directory / f"broker-{broker_id}"
        properties = {key: value.replace(OWN_DIRECTORY, str(directory)) for key, value in self._properties.items()}
        port = self._port + broker_id - 1 if self._port else 0
        broker = KlammBroker(broker_id, self.zookeeper, directory, properties, port=port)
        broker.http_port = reserve_port() if self._http else 0
        return broker

    async def _start_all(self) -> None:
        # Start all at the same time, because one after another would take several times as long.
        results = await asyncio.gather(*(broker.start() for broker in self.brokers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _stop_all(self) -> None:
        """Stop all at once, because no broker would be left to take over the leaderships."""
        for broker in reversed(self.brokers.values()):
            if broker.alive:
                broker.signal(signal.SIGTERM)
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        for broker in self.brokers.values():
            broker.release_ports()

    @asynccontextmanager
    async def _running_zookeeper(self) -> AsyncIterator[str]:
        wanted = self._wanted_zookeeper
        if wanted and wanted not in {"embedded", "memory"}:
            self.zookeeper_kind = "yours"
            yield wanted
            return
        missing = embedded_available()
        if wanted == "embedded" and missing:
            raise ConfigError(f"{missing}, or use klamm's own with --zookeeper memory")
        if wanted == "memory" or missing:
            self.zookeeper_kind = "klamm's own" + (f"; {missing}" if missing and not wanted else "")
            async with self._running_memory_zookeeper() as address:
                yield address
            return
        self.zookeeper_kind = "embedded Apache ZooKeeper"
        server = EmbeddedZooKeeper(self._directory / "zookeeper", force_sync=self._durable, lasting=self._durable)
        async with server.running():
            yield f"{HOST}:{server.port}"

    @asynccontextmanager
    async def _running_memory_zookeeper(self) -> AsyncIterator[str]:
        server = _MemoryZooKeeperProcess(self._directory, durable=self._durable)
        try:
            yield await server.start()
        finally:
            await server.stop()

    async def wait_until_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until every running broker knows a controller and all other running brokers."""
        try:
            async with asyncio.timeout(timeout):
                while not await self._is_ready():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logs = self._directory / "broker-*" / "broker.log"
            raise ServerNotStarted(f"the cluster was not ready after {timeout:.0f} s; see {logs}") from None

    async def _is_ready(self) -> bool:
        alive = {broker.id for broker in self.brokers.values() if broker.alive}
        for broker_id in sorted(alive):
            metadata = await self.metadata(broker_id, [])
            if metadata is None or metadata.controller_id < 0:
                return False
            if {broker.node_id for broker in metadata.brokers} != alive:
                return False
        return True

    async def metadata(self, broker_id: int, topics: list[str] | None = None) -> Any | None:
        """The Metadata answer of one broker, or None if it does not answer. `topics=None` asks for all topics."""
        broker = self.brokers[broker_id]
        connection = BrokerConnection(AsyncioNetwork(), HOST, broker.port, "klamm-up", SystemClock())
        cls = request_class(ApiKey.METADATA)
        wanted = None if topics is None else [cls.MetadataRequestTopic(name=name) for name in topics]
        request = cls(version=METADATA_VERSION, topics=wanted, allow_auto_topic_creation=False)
        try:
            await connection.connect()
            body = encode_request(request, METADATA_VERSION)
            answer = await connection.request(ApiKey.METADATA, METADATA_VERSION, [body], timeout=10.0)
            return decode_response(ApiKey.METADATA, METADATA_VERSION, answer)
        except OSError:
            return None
        finally:
            await connection.close()


class _MemoryZooKeeperProcess(ServerProcess):
    """`klamm zookeeper`; its ready line names its address."""

    def __init__(self, directory: Path, *, durable: bool) -> None:
        super().__init__("ZooKeeper", directory / "zookeeper.log")
        self._arguments = ["--data", str(directory / "zookeeper")] if durable else []

    def command(self) -> Sequence[str]:
        return klamm_command("zookeeper", "--port", "0", *self._arguments)
