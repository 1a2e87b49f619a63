"""A real cluster for asyncio tests: real processes, real elections, and kill -9 at any time.

`klamm.testing.cluster.KlammCluster` offers the same methods to tests without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import TopicPartition
from klamm.server.broker_process import KlammBroker
from klamm.server.local_cluster import LocalCluster
from klamm.server.session_file import read_session
from klamm.testing.network import ZOOKEEPER, FaultyNetwork, Node
from klamm.testing.waiting import WAIT_SECONDS, eventually
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode

if TYPE_CHECKING:
    from klamm.testing.producer_history import ProducerHistory

CREATE_TOPICS_VERSION: Final = 4
CREATE_TIMEOUT_MS: Final = 15_000
UNKNOWN_TOPIC_SECONDS: Final = 2.0
"""How long a topic may be unknown to all brokers, because its creation may still be under way."""
EVENTS_FILE: Final = "state-change.json"
SESSION_TRIES: Final = 20
SESSION_PAUSE: Final = 0.5


class ClusterError(KlammError):
    """What a test asked for is not possible; the message says why."""


class ClusterView:
    """What can be said about a cluster without asking it."""

    def __init__(self, local: LocalCluster) -> None:
        self._local = local

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
    def events(self) -> list[dict[str, Any]]:
        """What all brokers have written to their event files, by time: elections, state changes, and why."""
        found: list[dict[str, Any]] = []
        for broker in self._local.brokers.values():
            path = broker.data_directory / EVENTS_FILE
            for line in path.read_bytes().splitlines() if path.exists() else ():
                try:
                    found.append(orjson.loads(line))
                except orjson.JSONDecodeError:
                    continue  # the last line of a killed broker
        return sorted(found, key=lambda event: int(event["time_ms"]))

    def directory(self, broker: int) -> Path:
        """Data directory (log.dirs) of a broker."""
        return self._broker(broker).data_directory

    def log_text(self, broker: int) -> str:
        return self._broker(broker).log_text()

    def pid(self, broker: int) -> int:
        return self._broker(broker).pid

    def exit_code(self, broker: int) -> int | None:
        """None while the broker runs; negative for a signal."""
        return self._broker(broker).exit_code

    def internal_port(self, broker: int) -> int:
        """Port of the listener on which brokers talk to each other."""
        return self._broker(broker).internal_port

    def metrics_url(self, broker: int) -> str:
        """URL of a broker's metrics, in a cluster started with `http=True`."""
        return self._broker(broker).metrics_url

    def _broker(self, broker: int) -> KlammBroker:
        found = self._local.brokers.get(broker)
        if found is None:
            raise ClusterError(f"there is no broker {broker}: the brokers are {', '.join(map(str, self.broker_ids))}")
        return found


class AsyncKlammCluster(ClusterView):
    """What `async with running_cluster() as cluster` gives."""

    def __init__(self, local: LocalCluster, resources: AsyncExitStack, network: FaultyNetwork | None) -> None:
        super().__init__(local)
        self._resources = resources
        self._network = network
        self._zk: ZooKeeperClient | None = None

    # --- questions

    async def controller(self) -> int:
        """Id of the controller that all live brokers agree on. Waits until there is one."""

        async def agreed() -> int | None:
            answers = {await self._controller_according_to(broker) for broker in self._answering()}
            return answers.pop() if len(answers) == 1 and answers <= set(self.alive) else None

        return await eventually("a controller", agreed)

    async def leader_of(self, topic: str | tuple[str, int], partition: int = 0) -> int:
        """Id of the live leader of a topic's partition, or of a (topic, partition). Waits until there is one."""
        name, number = (topic, partition) if isinstance(topic, str) else topic
        await self._known_partition(name, number)

        async def leader() -> int | None:
            entry = await self._partition(name, number)
            return int(entry.leader_id) if entry is not None and entry.leader_id in self.alive else None

        return await eventually(f"a leader of {name}-{number}", leader)

    async def isr_of(self, topic: str | tuple[str, int], partition: int = 0) -> list[int]:
        """The ISR as ZooKeeper has it, which brokers learn a little later."""
        name, number = (topic, partition) if isinstance(topic, str) else topic
        await self._known_partition(name, number)
        (isr,) = await self._isrs([TopicPartition(name, number)])
        return sorted(isr)

    async def partitions(self, topic: str, *, seen_by: int | None = None) -> list[Any]:
        """Partition entries of Metadata from the broker `seen_by`, or from the first one that answers."""
        for broker in self._answering() if seen_by is None else [self._broker(seen_by).id]:
            metadata = await self._local.metadata(broker, [topic])
            if metadata is not None:
                return list(metadata.topics[0].partitions)
        return []

    # --- actions

    async def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, **configs: object
    ) -> None:
        """Create a topic and wait for its leaders. Configuration keys have underscores: `min_insync_replicas=2`."""
        replicas = min(3, len(self.alive)) if replication_factor is None else replication_factor
        cls = request_class(ApiKey.CREATE_TOPICS)
        overrides = {key.replace("_", "."): as_property(value) for key, value in configs.items()}
        topic = cls.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=[cls.CreatableTopic.CreatableTopicConfig(name=k, value=v) for k, v in overrides.items()],
        )
        request = cls(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS, validate_only=False)

        async def created() -> bool:
            answer = await self._local.request(
                await self.controller(), ApiKey.CREATE_TOPICS, CREATE_TOPICS_VERSION, request
            )
            if answer is None or answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER:
                return False  # the controller has just changed
            code = ErrorCode(answer.topics[0].error_code)
            if code is not ErrorCode.NONE:
                raise ClusterError(f"topic {name} was not created: {answer.topics[0].error_message or code.name}")
            return True

        await eventually(f"topic {name}", created)
        for partition in range(partitions):
            await self.leader_of(name, partition)

    async def kill(self, broker: int) -> None:
        """kill -9: leadership is not handed over, the logs are not marked clean, and the session expires by itself."""
        await self._broker(broker).kill()

    async def stop(self, broker: int) -> None:
        """SIGTERM: a controlled shutdown."""
        await self._broker(broker).stop()

    async def start(self, broker: int, properties: Mapping[str, object] | None = None) -> None:
        """Start a broker that is down. It keeps these additional properties from now on."""
        if self._broker(broker).alive:
            raise ClusterError(f"broker {broker} is already running")
        self._broker(broker).properties |= {key: as_property(value) for key, value in (properties or {}).items()}
        await self._broker(broker).start()

    def pause(self, broker: int) -> None:
        """SIGSTOP: alive for the kernel, dead for everyone else."""
        self._running(broker).pause()

    def resume(self, broker: int) -> None:
        self._running(broker).resume()

    async def expire_session(self, broker: int) -> None:
        """End the broker's ZooKeeper session now, as if ZooKeeper had not heard from it for the whole timeout."""
        directory = str(self._running(broker).data_directory)
        for _ in range(SESSION_TRIES):  # a broker that has just begun a new session has not written it down yet
            session = read_session(directory)
            if session is not None and await self._end(*session):
                return
            await asyncio.sleep(SESSION_PAUSE)
        raise ClusterError(f"broker {broker} has no session at the moment")

    async def partition(self, one: Node, other: Node) -> None:
        """Two brokers, or a broker and "zookeeper", no longer reach each other. Needs `network=True`."""
        await self._faults().partition(self._node(one), self._node(other))

    async def slow(self, broker: int, milliseconds: float) -> None:
        """Everything that the broker's listeners receive and answer takes this much longer. Needs `network=True`."""
        await self._faults().slow(self._node(broker), milliseconds / 1000)

    async def heal(self) -> None:
        """End all partitions and delays."""
        await self._faults().heal()

    async def wait_until_healthy(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until all running brokers know each other and a controller, every partition has a leader, and every ISR
        has all of its running replicas."""
        await self._local.wait_until_ready(timeout)
        lacking: list[str] = []

        async def healthy() -> bool:
            lacking[:] = await self._lacking()
            return not lacking

        await eventually(lambda: f"a healthy cluster: {', '.join(lacking[:5])}", healthy, timeout)

    async def assert_nothing_lost(self, history: ProducerHistory) -> None:
        """Fail unless every record that was acknowledged is at its offset."""
        from klamm.testing.producer_history import LISTED_MAX, lost_records

        lost = await lost_records(history, self.bootstrap)
        listed = "\n".join(lost[:LISTED_MAX])
        assert not lost, f"{len(lost)} of {history.count} acknowledged records were lost:\n{listed}"

    # --- internals

    async def _lacking(self) -> list[str]:
        """What keeps the cluster from being healthy."""
        alive = set(self.alive)
        replicas: dict[TopicPartition, set[int]] = {}
        for broker in sorted(alive):
            metadata = await self._local.metadata(broker)
            if metadata is None:
                return [f"broker {broker} does not answer"]
            for topic in metadata.topics:
                for partition in topic.partitions:
                    place = TopicPartition(topic.name, partition.partition_index)
                    if partition.leader_id not in alive:
                        return [f"{place} has no leader"]
                    replicas[place] = set(partition.replica_nodes)
        isrs = await self._isrs(list(replicas))
        return [
            f"the ISR of {place} is {sorted(isr)}"
            for (place, assigned), isr in zip(replicas.items(), isrs, strict=True)
            if isr != assigned & alive
        ]

    async def _isrs(self, places: list[TopicPartition]) -> list[set[int]]:
        paths = [partition_state.path(place) for place in places]
        nodes = await (await self._zookeeper()).get_many(paths)
        return [
            set() if node is None else set(partition_state.decode(path, node.data).isr)
            for path, node in zip(paths, nodes, strict=True)
        ]

    async def _zookeeper(self) -> ZooKeeperClient:
        if self._zk is None:
            from klamm.server.inspection import zookeeper

            self._zk = await self._resources.enter_async_context(zookeeper(self.zookeeper))
        return self._zk

    async def _end(self, session_id: int, password: bytes) -> bool:
        from klamm.server.runtime import real_ports
        from klamm.zookeeper.client.end_session import end_session

        ports = real_ports()
        return await end_session(ports.network, ports.clock, self.zookeeper, session_id, password)

    async def _partition(self, topic: str, partition: int) -> Any | None:
        """The latest that any broker knows: one that is cut off from ZooKeeper believes in an old leader."""
        views = [await self.partitions(topic, seen_by=broker) for broker in self._answering()]
        entries = [entry for view in views for entry in view if entry.partition_index == partition]
        return max(entries, key=lambda entry: int(entry.leader_epoch), default=None)

    def _answering(self) -> list[int]:
        return [broker for broker in self.alive if not self._local.brokers[broker].paused]

    async def _known_partition(self, topic: str, partition: int) -> None:
        """Raises ClusterError if the topic or partition does not exist."""

        async def count() -> int:
            return max([len(await self.partitions(topic, seen_by=broker)) for broker in self._answering()], default=0)

        if not self._answering():
            raise ClusterError("no broker is running")
        try:
            known = await eventually(f"topic {topic}", count, UNKNOWN_TOPIC_SECONDS)
        except AssertionError:
            if await (await self._zookeeper()).exists(topic_znode.path(topic)) is None:
                raise ClusterError(f"topic {topic} does not exist") from None
            known = await eventually(f"brokers that know topic {topic}", count)  # they are slow
        if not 0 <= partition < known:
            raise ClusterError(f"topic {topic} has no partition {partition}: its partitions are 0 to {known - 1}")

    async def _controller_according_to(self, broker: int) -> int:
        metadata = await self._local.metadata(broker, [])
        return -1 if metadata is None else int(metadata.controller_id)

    def _running(self, broker: int) -> KlammBroker:
        if not self._broker(broker).alive:
            raise ClusterError(f"broker {broker} is not running")
        return self._broker(broker)

    def _node(self, node: Node) -> Node:
        return node if node == ZOOKEEPER else self._broker(int(node)).id

    def _faults(self) -> FaultyNetwork:
        if self._network is None:
            raise ClusterError("this cluster has no relays: start it with network=True")
        return self._network


def as_property(value: object) -> str:
    """
    >>> as_property(3), as_property(True)
    ('3', 'true')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
