"""A real cluster for tests: real processes, real elections, and kill -9 at any time.

`running_cluster` works in both worlds:

    with running_cluster() as cluster:          # plain functions, for any test
        cluster.kill(cluster.leader_of("orders", 0))

    async with running_cluster() as cluster:    # the same as coroutines
        await cluster.kill(await cluster.leader_of("orders", 0))

In the first, a separate thread runs the event loop that owns the processes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.server.broker_process import HOST
from klamm.server.local_cluster import LocalCluster
from klamm.testing.async_cluster import AsyncKlammCluster, ClusterView, as_property
from klamm.testing.network import ZOOKEEPER, FaultyNetwork, Node
from klamm.testing.waiting import WAIT_SECONDS
from klamm.zookeeper.server.child import release_port, reserve_port

if TYPE_CHECKING:
    from klamm.testing.producer_history import ProducerHistory

T = TypeVar("T")
Both = tuple[AsyncKlammCluster, LocalCluster]
Start = Callable[[], AbstractAsyncContextManager[Both]]

TEMPORARY: Final = "klamm-cluster-"


class KlammCluster(ClusterView):
    """The value of the fixture `klamm_cluster`: the methods of `AsyncKlammCluster` as plain functions."""

    def __init__(self, cluster: AsyncKlammCluster, local: LocalCluster, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(local)
        self._cluster = cluster
        self._loop = loop

    @property
    def controller(self) -> int:
        """Id of the controller that all live brokers agree on. Waits until there is one."""
        return self._call(self._cluster.controller())

    def leader_of(self, topic: str | tuple[str, int], partition: int = 0) -> int:
        """Id of the live leader of a topic's partition, or of a (topic, partition). Waits until there is one."""
        return self._call(self._cluster.leader_of(topic, partition))

    def isr_of(self, topic: str | tuple[str, int], partition: int = 0) -> list[int]:
        """The ISR as ZooKeeper has it, which brokers learn a little later."""
        return self._call(self._cluster.isr_of(topic, partition))

    def partitions(self, topic: str, *, seen_by: int | None = None) -> list[Any]:
        """Partition entries of Metadata from the broker `seen_by`, or from the first one that answers."""
        return self._call(self._cluster.partitions(topic, seen_by=seen_by))

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **configs: object
    ) -> None:
        """Create a topic and wait for its leaders. Configuration keys have underscores: `min_insync_replicas=2`."""
        self._call(self._cluster.create_topic(name, partitions, replication_factor, **configs))

    def kill(self, broker: int) -> None:
        """kill -9: leadership is not handed over, the logs are not marked clean, and the session expires by itself."""
        self._call(self._cluster.kill(broker))

    def stop(self, broker: int) -> None:
        """SIGTERM: a controlled shutdown."""
        self._call(self._cluster.stop(broker))

    def start(self, broker: int, properties: Mapping[str, object] | None = None) -> None:
        """Start a broker that is down. It keeps these additional properties from now on."""
        self._call(self._cluster.start(broker, properties))

    def pause(self, broker: int) -> None:
        """SIGSTOP: alive for the kernel, dead for everyone else."""
        self._cluster.pause(broker)

    def resume(self, broker: int) -> None:
        self._cluster.resume(broker)

    def expire_session(self, broker: int) -> None:
        """End the broker's ZooKeeper session now, as if ZooKeeper had not heard from it for the whole timeout."""
        self._call(self._cluster.expire_session(broker))

    def partition(self, one: Node, other: Node) -> None:
        """Two brokers, or a broker and "zookeeper", no longer reach each other. Needs `network=True`."""
        self._call(self._cluster.partition(one, other))

    def slow(self, broker: int, milliseconds: float) -> None:
        """Everything that the broker's listeners receive and answer takes this much longer. Needs `network=True`."""
        self._call(self._cluster.slow(broker, milliseconds))

    def heal(self) -> None:
        """End all partitions and delays."""
        self._call(self._cluster.heal())

    def wait_until_healthy(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until all running brokers know each other and a controller, every partition has a leader, and every ISR
        has all of its running replicas."""
        self._call(self._cluster.wait_until_healthy(timeout))

    def assert_nothing_lost(self, history: ProducerHistory) -> None:
        """Fail unless every record that was acknowledged is at its offset."""
        self._call(self._cluster.assert_nothing_lost(history))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class RunningCluster(AbstractContextManager[KlammCluster], AbstractAsyncContextManager[AsyncKlammCluster]):
    """What `running_cluster` returns: the cluster runs for the length of a `with` or `async with`."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._sync: AbstractContextManager[KlammCluster] | None = None
        self._async: AbstractAsyncContextManager[Both] | None = None

    def __enter__(self) -> KlammCluster:
        self._sync = _in_thread(self._start)
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._sync is not None
        return self._sync.__exit__(kind, error, traceback)

    async def __aenter__(self) -> AsyncKlammCluster:
        self._async = self._start()
        cluster, _ = await self._async.__aenter__()
        return cluster

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._async is not None
        return await self._async.__aexit__(kind, error, traceback)


def running_cluster(
    directory: Path | None = None,
    *,
    brokers: int = 3,
    zookeeper: str = "memory",
    http: bool = False,
    network: bool = False,
    properties: Mapping[str, object] | None = None,
) -> RunningCluster:
    """A cluster for the length of a `with` or an `async with`.

    Without a `directory` its data is temporary. `zookeeper` is `memory`, `embedded` or HOST:PORT. `http` serves metrics
    and `network` allows `partition` and `slow`, at the price of a relay in front of each listener.
    """

    @asynccontextmanager
    async def start() -> AsyncIterator[Both]:
        with _directory(directory) as path:
            settings = {key: as_property(value) for key, value in (properties or {}).items()}
            kind = _RelayedCluster if network else LocalCluster
            local = kind(path, brokers=brokers, zookeeper=zookeeper, http=http, properties=settings)
            async with local.running(), AsyncExitStack() as resources:
                faults = local.network if isinstance(local, _RelayedCluster) else None
                yield AsyncKlammCluster(local, resources, faults), local

    return RunningCluster(start)


class _RelayedCluster(LocalCluster):
    """Clients and brokers know the ports of relays, behind which the listeners and ZooKeeper are."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.network = FaultyNetwork(lambda: {b.id: b.pid for b in self.brokers.values() if b.alive})
        self._hidden: list[int] = []

    async def prepare(self) -> None:
        servers, slash, chroot = self.zookeeper.partition("/")
        zookeeper = await self.network.relay(ZOOKEEPER, int(servers.rpartition(":")[2]))
        for broker in self.brokers.values():
            broker.zookeeper = f"{HOST}:{zookeeper}{slash}{chroot}"
            broker.port, client = await self._behind_relay(broker.id)
            broker.internal_port, internal = await self._behind_relay(broker.id)
            broker.properties |= {
                "listeners": f"CLIENT://{HOST}:{client},INTERNAL://{HOST}:{internal}",
                "advertised.listeners": f"CLIENT://{HOST}:{broker.port},INTERNAL://{HOST}:{broker.internal_port}",
            }

    async def ready(self) -> None:
        self.network.keep()

    async def _behind_relay(self, broker: int) -> tuple[int, int]:
        """The port of a new relay, and the port behind it."""
        hidden = reserve_port()
        self._hidden.append(hidden)
        return await self.network.relay(broker, hidden, reserve_port()), hidden

    async def clean_up(self) -> None:
        await self.network.close()
        for port in self._hidden:
            release_port(port)


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """The wanted directory, or a temporary one. Those that killed test processes left behind are removed first."""
    if wanted is not None:
        yield wanted
        return
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        owner = left.name.removeprefix(TEMPORARY).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}{os.getpid()}-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextmanager
def _in_thread(
    start: Start,
) -> Iterator[KlammCluster]:
    loop = asyncio.new_event_loop()
    up, down = threading.Event(), asyncio.Event()
    failure: list[BaseException] = []
    running: list[KlammCluster] = []

    async def serve() -> None:
        async with start() as (cluster, local):
            running.append(KlammCluster(cluster, local, loop))
            up.set()
            await down.wait()

    def own_the_processes() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=own_the_processes, name="klamm-cluster", daemon=True)
    thread.start()
    up.wait()
    if failure:
        loop.close()
        raise failure[0]
    try:
        yield running[0]
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join()
        loop.close()
        if failure:
            raise failure[0]
