"""A real cluster for tests: real processes, real elections, and kill -9 at any time.

The methods are plain functions that any test can call, synchronous or not: a separate thread runs the event loop that
owns the broker processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kafka.admin import KafkaAdminClient

from klamm.server.local_cluster import LocalCluster
from klamm.testing.waiting import WAIT_SECONDS, wait_until

T = TypeVar("T")


class KlammCluster:
    """The value of the fixture `klamm_cluster`."""

    def __init__(self, local: LocalCluster, loop: asyncio.AbstractEventLoop) -> None:
        self._local = local
        self._loop = loop

    # --- inspection

    @property
    def bootstrap(self) -> str:
        """HOST:PORT,... of all brokers, including dead ones, as real clients are configured."""
        return self._local.bootstrap

    @property
    def zookeeper(self) -> str:
        return self._local.zookeeper

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self._local.brokers)

    @property
    def alive(self) -> list[int]:
        return sorted(broker.id for broker in self._local.brokers.values() if broker.alive)

    @property
    def controller(self) -> int:
        """Id of the controller that all live brokers agree on. Waits until there is one."""
        return wait_until("a controller", self._controller_now)

    def directory(self, broker: int) -> Path:
        """Data directory (log.dirs) of a broker."""
        return self._local.brokers[broker].data_directory

    def log_text(self, broker: int) -> str:
        return self._local.brokers[broker].log_text()

    def pid(self, broker: int) -> int:
        return self._local.brokers[broker].pid

    def internal_port(self, broker: int) -> int:
        """Port of the listener on which brokers talk to each other."""
        return self._local.brokers[broker].internal_port

    def metrics_url(self, broker: int) -> str:
        """URL of a broker's metrics, in a cluster started with `http=True`."""
        return self._local.brokers[broker].metrics_url

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Id of the live leader. Waits until there is one."""

        def leader() -> int | None:
            for entry in self.partitions(topic):
                if entry.partition_index == partition and entry.leader_id in self.alive:
                    return int(entry.leader_id)
            return None

        return wait_until(f"a leader of {topic}-{partition}", leader)

    def isr_of(self, topic: str, partition: int = 0) -> list[int]:
        return next(sorted(p.isr_nodes) for p in self.partitions(topic) if p.partition_index == partition)

    def partitions(self, topic: str, *, seen_by: int | None = None) -> list[Any]:
        """Partition entries of Metadata from the broker `seen_by`, or from the first one that answers."""
        for broker in self.alive if seen_by is None else [seen_by]:
            metadata = self._call(self._local.metadata(broker, [topic]))
            if metadata is not None:
                return list(metadata.topics[0].partitions)
        return []

    # --- actions

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **configs: object
    ) -> None:
        """Create a topic and wait for its leaders. Configuration keys have underscores: `min_insync_replicas=2`."""
        replicas = min(3, len(self.alive)) if replication_factor is None else replication_factor
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            client.create_topics(
                {
                    name: {
                        "num_partitions": partitions,
                        "replication_factor": replicas,
                        "configs": {key.replace("_", "."): str(value) for key, value in configs.items()},
                    }
                }
            )
        finally:
            client.close()
        for partition in range(partitions):
            self.leader_of(name, partition)

    def kill(self, broker: int) -> None:
        """kill -9: leadership is not handed over, the logs are not marked clean, and the session expires by itself."""
        self._call(self._local.brokers[broker].kill())

    def stop(self, broker: int) -> None:
        """SIGTERM: a controlled shutdown."""
        self._call(self._local.brokers[broker].stop())

    def start(self, broker: int, properties: Mapping[str, str] | None = None) -> None:
        """Start a broker that is down. It keeps these additional properties from now on."""
        self._local.brokers[broker].properties |= properties or {}
        self._call(self._local.brokers[broker].start())

    def pause(self, broker: int) -> None:
        """SIGSTOP: alive for the kernel, dead for everyone else."""
        self._local.brokers[broker].pause()

    def resume(self, broker: int) -> None:
        self._local.brokers[broker].resume()

    def wait_until_healthy(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until all running brokers know each other and a controller, and every ISR has all of its replicas."""
        self._call(self._local.wait_until_ready(timeout))
        wait_until("full ISRs everywhere", self._all_in_sync, timeout)

    def _all_in_sync(self) -> bool:
        alive = set(self.alive)
        for broker in sorted(alive):
            metadata = self._call(self._local.metadata(broker))
            if metadata is None:
                return False
            for topic in metadata.topics:
                for partition in topic.partitions:
                    if partition.leader_id not in alive:
                        return False
                    if set(partition.isr_nodes) != set(partition.replica_nodes) & alive:
                        return False
        return True

    def _controller_now(self) -> int | None:
        answers = {self._controller_according_to(broker) for broker in self.alive}
        return answers.pop() if len(answers) == 1 and answers <= set(self.alive) else None

    def _controller_according_to(self, broker: int) -> int:
        metadata = self._call(self._local.metadata(broker, []))
        return -1 if metadata is None else int(metadata.controller_id)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def running_cluster(
    directory: Path,
    *,
    brokers: int = 3,
    zookeeper: str = "memory",
    http: bool = False,
    properties: Mapping[str, str] | None = None,
) -> Iterator[KlammCluster]:
    """A cluster for the length of a `with`. The fixture uses this with pytest's temporary directory."""
    local = LocalCluster(directory, brokers=brokers, zookeeper=zookeeper, http=http, properties=properties)
    loop = asyncio.new_event_loop()
    up, down = threading.Event(), asyncio.Event()
    failure: list[BaseException] = []

    async def serve() -> None:
        async with local.running():
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
        yield KlammCluster(local, loop)
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join()
        loop.close()
        if failure:
            raise failure[0]
