"""A cluster on this machine: one ZooKeeper and several broker processes, as `klamm up` and the test fixture run it.

Brokers are separate processes, so that `kill -9` really kills one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from klamm.model.errors import ConfigError
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import HOST, KlammBroker
from klamm.server.cluster_directory import OWN_ZOOKEEPERS, BrokerPorts, ClusterShape
from klamm.server.server_process import READY_TIMEOUT, ServerNotStarted, ServerProcess, klamm_command
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.zookeeper.server.child import reserve_port
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.server.embedded import available as embedded_available

METADATA_VERSION: Final = 7
REQUEST_TIMEOUT: Final = 20.0
READY_POLL: Final = 0.01

Properties = Mapping[str, str]
OWN_DIRECTORY = "{directory}"
"""A placeholder in a property for the directory of the broker that gets it."""
ON_ONE_MACHINE = {
    # A controller that does not answer here is gone, not slow, so a broker that stops need not wait long for it.
    "controlled.shutdown.retry.backoff.ms": "200",
    "klamm.fast.failover": "true",
    # Kafka's own server.properties has the same: it saves three seconds of every first join.
    "group.initial.rebalance.delay.ms": "0",
}


def coordinator_topics(brokers: int) -> dict[str, str]:
    """Kafka's defaults, as far as a small cluster has brokers for the replicas."""
    replicas = str(min(3, brokers))
    return {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": str(min(2, brokers)),
    }


class ZooKeeperServer(Protocol):
    """A ZooKeeper that the cluster runs itself: the real one or klamm's own."""

    @property
    def alive(self) -> bool: ...

    @property
    def pid(self) -> int | None: ...

    async def start(self) -> object: ...

    async def stop(self) -> object: ...

    async def kill(self) -> object: ...

    async def wait_ended(self) -> int: ...


class LocalCluster:
    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        zookeeper: str = "",
        shape: ClusterShape | None = None,
        durable: bool = False,
        journal: bool = False,
        http: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """A `shape` names everything; without one, `brokers` and `zookeeper` do, and all ports are free ones.
        `journal` lets klamm's own ZooKeeper survive its process; with `durable`, it also survives a loss of power."""
        self._directory = directory.absolute()
        self._http = http
        self._shape = shape or ClusterShape(zookeeper, 0, {n: BrokerPorts(0, 0, 0) for n in range(1, brokers + 1)})
        self._durable = durable
        self._journal = journal
        topics = coordinator_topics(len(self._shape.brokers))
        self._properties = {**ON_ONE_MACHINE, **topics, **(properties or {})}
        self.zookeeper = ""
        """HOST:PORT[/chroot], known once started."""
        self.zookeeper_kind = ""
        self.zookeeper_server: ZooKeeperServer | None = None
        """None if the ZooKeeper is the user's own."""
        self.brokers: dict[int, KlammBroker] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LocalCluster]:
        """On entry a controller is elected and every broker answers Metadata. On exit every process is gone: brokers
        first, because a broker that stops tells ZooKeeper."""
        try:
            await self._start_zookeeper()
            for broker_id, ports in self._shape.brokers.items():
                self.brokers[broker_id] = self._broker(broker_id, ports)
            await self.prepare()
            await self._start_all()
            await self.wait_until_ready()
            await self.ready()
            yield self
        finally:
            await self._stop_all()
            await self.clean_up()

    async def prepare(self) -> None:
        """For subclasses: called when ZooKeeper runs and before the brokers start."""

    async def ready(self) -> None:
        """For subclasses: called when the cluster is ready."""

    async def clean_up(self) -> None:
        """For subclasses: called when every process has ended."""

    async def kill_all(self) -> None:
        """For an owner in a hurry: end every process at once."""
        servers = [self.zookeeper_server] if self.zookeeper_server is not None else []
        await asyncio.gather(*(server.kill() for server in [*self.brokers.values(), *servers]))

    def _broker(self, broker_id: int, ports: BrokerPorts) -> KlammBroker:
        directory = self._directory / f"broker-{broker_id}"
        properties = {key: value.replace(OWN_DIRECTORY, str(directory)) for key, value in self._properties.items()}
        broker = KlammBroker(broker_id, self.zookeeper, directory, properties, port=ports.port)
        broker.internal_port = ports.internal_port
        broker.http_port = ports.http_port or (reserve_port() if self._http else 0)
        return broker

    async def _start_all(self) -> None:
        # Start all at the same time, because one after another would take several times as long.
        results = await asyncio.gather(*(broker.start() for broker in self.brokers.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _stop_all(self) -> None:
        """Stop all brokers at once, because no broker would be left to take over the leaderships. Each gets one
        SIGTERM: a second one would end it before it has marked its logs as clean."""
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))
        for broker in self.brokers.values():
            broker.release_ports()
        if self.zookeeper_server is not None:
            await self.zookeeper_server.stop()

    async def _start_zookeeper(self) -> None:
        wanted, port = self._shape.zookeeper, self._shape.zookeeper_port
        if wanted and wanted not in OWN_ZOOKEEPERS:
            self.zookeeper, self.zookeeper_kind = wanted, "yours"
            return
        missing = "" if wanted == "memory" else embedded_available()
        if wanted == "embedded" and missing:
            raise ConfigError(f"{missing}, or use klamm's own with --zookeeper memory")
        if wanted == "memory" or missing:
            self.zookeeper_kind = "klamm's own" + (f"; {missing}" if missing and not wanted else "")
            journal = self._directory / "zookeeper" if self._journal else None
            own = OwnZooKeeper(self._directory, port=port, journal=journal, sync=self._durable)
            self.zookeeper_server = own
            await own.start()
            self.zookeeper = f"{HOST}:{own.port}"
            return
        self.zookeeper_kind = "embedded Apache ZooKeeper"
        server = EmbeddedZooKeeper(
            self._directory / "zookeeper", port=port, force_sync=self._durable, lasting=self._durable
        )
        self.zookeeper_server = server
        await server.start()
        self.zookeeper = f"{HOST}:{server.port}"

    async def wait_until_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Wait until every running broker knows a controller and all other running brokers."""
        try:
            async with asyncio.timeout(timeout):
                while not await self._is_ready():
                    await asyncio.sleep(READY_POLL)
        except TimeoutError:
            logs = self._directory / "broker-*" / "broker.log"
            raise ServerNotStarted(f"the cluster was not ready after {timeout:.0f} s; see {logs}") from None

    async def _is_ready(self) -> bool:
        alive = {broker.id for broker in self.brokers.values() if broker.alive}
        views = await asyncio.gather(*(self.metadata(broker_id, []) for broker_id in alive))
        return all(
            view is not None and view.controller_id >= 0 and {broker.node_id for broker in view.brokers} == alive
            for view in views
        )

    async def metadata(self, broker_id: int, topics: list[str] | None = None) -> Any | None:
        """The Metadata answer of one broker, or None if it does not answer. `topics=None` asks for all topics."""
        cls = request_class(ApiKey.METADATA)
        wanted = None if topics is None else [cls.MetadataRequestTopic(name=name) for name in topics]
        request = cls(topics=wanted, allow_auto_topic_creation=False)
        return await self.request(broker_id, ApiKey.METADATA, METADATA_VERSION, request)

    async def request(self, broker_id: int, api_key: ApiKey, version: int, request: Any) -> Any | None:
        """The answer of one broker, or None if it does not answer."""
        port = self.brokers[broker_id].port
        connection = BrokerConnection(AsyncioNetwork(), HOST, port, "klamm-up", SystemClock())
        try:
            await connection.connect()
            body = encode_request(request, version)
            answer = await connection.request(api_key, version, [body], timeout=REQUEST_TIMEOUT)
            return decode_response(api_key, version, answer)
        except OSError:
            return None
        finally:
            await connection.close()


class OwnZooKeeper(ServerProcess):
    """`klamm zookeeper` as a child process. It keeps its port when it restarts."""

    def __init__(self, directory: Path, *, port: int = 0, journal: Path | None = None, sync: bool = True) -> None:
        super().__init__("ZooKeeper", directory / "zookeeper.log")
        self.port = port
        self._arguments = ["--data", str(journal)] if journal is not None else []
        if journal is not None and not sync:
            self._arguments.append("--no-sync")

    @property
    def modules(self) -> Sequence[str]:
        return ("zookeeper",)

    def command(self) -> Sequence[str]:
        return klamm_command("zookeeper", "--port", str(self.port), *self._arguments)

    async def start(self, timeout: float = READY_TIMEOUT) -> str:
        address = await super().start(timeout)
        self.port = int(address.rpartition(":")[2])
        return address
