"""One side of the differential test: a controller process, recording stub brokers, and the actions of a script.

Both sides share one ZooKeeper, each below its own chroot, and have the same broker ids. The controller is broker 100, a
dedicated one without replicas. Each method of `Side` that a script calls does what a broker, a tool or an operator
does, and returns the controller's answer, if there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import orjson

from klamm.bench.stubs import LISTENER
from klamm.model.brokers import Endpoint
from klamm.model.errors import NoNode
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.model.ports import Create, CreateMode, Delete, Node, Op, OpResult, Set, Stat
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.server.broker_process import BrokerProcess
from klamm.testing.recording import RecordingBroker
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import (
    broker_id,
    config,
    config_change,
    delete_topics,
    isr_change,
    log_dir_event,
    partition_state,
    preferred_replica_election,
    reassign_partitions,
    topic,
)
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

CONTROLLER = 100
STUBS = (1, 2, 3, 4)
QUIET_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
REQUEST_TIMEOUT_MS = 20_000

Replicas = Sequence[int]
Tree = dict[str, Node]


def name(partition: str) -> TopicPartition:
    """`orders-0`, as a script writes it."""
    topic_name, _, index = partition.rpartition("-")
    return TopicPartition(topic_name, int(index))


class Side:
    def __init__(self, label: str, controller: BrokerProcess, zookeeper: str) -> None:
        self.label = label
        self.controller = controller
        self._zookeeper = zookeeper
        self._network, self._clock, self._random = AsyncioNetwork(), SystemClock(), Random(1)
        self.zk = self._connect()
        self.stubs = {n: RecordingBroker(n, self._network, self._clock, self._connect) for n in STUBS}

    def _connect(self) -> ZooKeeperClient:
        return ZooKeeperClient(self._network, self._clock, self._random, self._zookeeper, 30_000)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Side]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.zk.running())
            await self.zk.ensure_path("/")
            for path in PERSISTENT_PATHS:
                await self.zk.ensure_path(path)
            for stub in self.stubs.values():
                await stub.start()
                stack.push_async_callback(stub.stop)
            await stack.enter_async_context(self.controller.running())
            yield self

    # --- inspection

    async def tree(self) -> Tree:
        """Every znode below the chroot, with data and Stat."""
        nodes: Tree = {}
        level = ["/"]
        while level:
            found = await self.zk.get_many(level)
            nodes |= {path: node for path, node in zip(level, found, strict=True) if node is not None}
            children = await self.zk.children_many(level)
            level = [
                f"{path.rstrip('/')}/{child}"
                for path, names in zip(level, children, strict=True)
                for child in sorted(names or ())
            ]
        return nodes

    async def settled(self) -> None:
        """Wait until the controller has emptied its queue, and for a while neither sends nor writes anything."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        seen: object = None
        since = time.monotonic()
        while time.monotonic() - since < QUIET_SECONDS:
            assert time.monotonic() < deadline, f"{self.label} does not become idle"
            listed = await self.list_reassignments()
            heard = [len(stub.requests) for stub in self.stubs.values()]
            now = (listed, heard, await self.tree())
            if now != seen or listed["error"]:
                seen, since = now, time.monotonic()
            await asyncio.sleep(0.03)

    # --- topics

    async def create_topics(self, topics: Mapping[str, Sequence[Replicas]], overrides: Mapping[str, str]) -> None:
        """Like Kafka's admin client for ZooKeeper, but in one transaction, so that the controller sees one event."""
        ops: list[Op] = [Create(config.topic_path(t), config.encode(overrides)) for t in topics]
        await self._all([*ops, *(Create(topic.path(t), _assignments(dict(enumerate(r)))) for t, r in topics.items())])

    async def grow(self, topic_name: str, more: Sequence[Replicas]) -> None:
        path = topic.path(topic_name)
        old = topic.decode(path, (await self.zk.get(path)).data).partitions
        new = {len(old) + n: Assignment(_ids(replicas)) for n, replicas in enumerate(more)}
        await self.zk.set(path, topic.encode(old | new))

    async def delete_topics(self, *topics: str) -> None:
        await self._all([Create(delete_topics.path(t)) for t in topics])

    async def remove_behind_its_back(self, topic_name: str) -> None:
        paths = [path for path in await self.tree() if f"{path}/".startswith(f"{topic.path(topic_name)}/")]
        await self._all([Delete(path) for path in sorted(paths, reverse=True)])

    async def configure(self, topic_name: str, overrides: Mapping[str, str]) -> None:
        await self.zk.set(config.topic_path(topic_name), config.encode(overrides))
        changed = config_change.encode(f"{config.TOPICS}/{topic_name}")
        await self.zk.create(config_change.PREFIX, changed, CreateMode.PERSISTENT_SEQUENTIAL)

    # --- actions of leaders and brokers

    async def change_isr(self, partition: str, isr: Replicas, notify: bool = True) -> str:
        """An ISR write of a leader: same leader, same epochs."""
        path = partition_state.path(name(partition))
        try:
            node = await self.zk.get(path)
        except NoNode:
            return "the partition does not exist any more"
        state = partition_state.decode(path, node.data)
        await self.zk.set(path, partition_state.encode(state._replace(isr=_ids(isr))), node.stat.version)
        if notify:
            await self.notify_isr(partition)
        return "written"

    async def notify_isr(self, *partitions: str) -> None:
        data = isr_change.encode([name(p) for p in partitions])
        await self.zk.create(isr_change.PREFIX, data, CreateMode.PERSISTENT_SEQUENTIAL)

    async def log_directory_fails(self, broker: int, *partitions: str) -> None:
        self.stubs[broker].failed = {name(p) for p in partitions}
        data = log_dir_event.encode(BrokerId(broker))
        await self.zk.create(log_dir_event.PREFIX, data, CreateMode.PERSISTENT_SEQUENTIAL)

    async def die_together(self, *brokers: int) -> None:
        await self._all([Delete(broker_id.path(BrokerId(broker))) for broker in brokers])

    async def return_together(self, *brokers: int) -> None:
        """Register several brokers in one transaction, and therefore in one session: the script's."""
        ops: list[Op] = []
        for broker in brokers:
            path = broker_id.path(BrokerId(broker))
            ops += [Create(path, None, CreateMode.EPHEMERAL), Set(path, self.stubs[broker].document(), 0)]
        for broker, written in zip(brokers, (await self._all(ops))[1::2], strict=True):
            assert isinstance(written, Stat)
            self.stubs[broker].begin_life(written.czxid)

    async def log_directory_repaired(self, broker: int) -> None:
        self.stubs[broker].failed = set()
        await self.stubs[broker].bounce()

    async def controlled_shutdown(self, broker: int, epochs_ago: int = 0) -> object:
        """With `epochs_ago`, ask with an earlier broker epoch."""
        epoch = self.stubs[broker].epoch - epochs_ago if broker in self.stubs else 1
        asked = request_class(ApiKey.CONTROLLED_SHUTDOWN)(broker_id=broker, broker_epoch=epoch)
        answer = await self._ask(ApiKey.CONTROLLED_SHUTDOWN, 3, asked)
        return answer.error_code, sorted((p.topic_name, p.partition_index) for p in answer.remaining_partitions)

    # --- requests of operators

    async def prefer_by_znode(self, *partitions: str) -> None:
        data = preferred_replica_election.encode([name(p) for p in partitions])
        await self.zk.create(preferred_replica_election.PATH, data)

    async def elect(self, *partitions: str, unclean: bool = False) -> object:
        cls = request_class(ApiKey.ELECT_LEADERS)
        asked = [cls.TopicPartitions(topic=t, partitions=ns) for t, ns in _by_topic(partitions).items()]
        request = cls(election_type=int(unclean), topic_partitions=asked or None, timeout_ms=REQUEST_TIMEOUT_MS)
        answer = await self._ask(ApiKey.ELECT_LEADERS, 2, request)
        results = [
            (f"{t.topic}-{p.partition_id}", p.error_code)
            for t in answer.replica_election_results
            for p in t.partition_result
        ]
        return answer.error_code, sorted(results)

    async def reassign_by_znode(self, **targets: Replicas) -> None:
        wanted = {name(p.replace("__", "-")): _ids(replicas) for p, replicas in targets.items()}
        await self.zk.create(reassign_partitions.PATH, reassign_partitions.encode(wanted))

    async def reassign(self, targets: Mapping[str, Replicas | None]) -> object:
        cls = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        topics = [
            cls.ReassignableTopic(
                name=t,
                partitions=[
                    cls.ReassignableTopic.ReassignablePartition(partition_index=n, replicas=targets[f"{t}-{n}"])
                    for n in indexes
                ],
            )
            for t, indexes in _by_topic(list(targets)).items()
        ]
        answer = await self._ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, cls(timeout_ms=REQUEST_TIMEOUT_MS, topics=topics)
        )
        results = [(f"{t.name}-{p.partition_index}", p.error_code) for t in answer.responses for p in t.partitions]
        return answer.error_code, sorted(results)

    async def list_reassignments(self) -> dict[str, Any]:
        cls = request_class(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        answer = await self._ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, cls(timeout_ms=10_000, topics=None))
        moving = {
            f"{t.name}-{p.partition_index}": (p.replicas, p.adding_replicas, p.removing_replicas)
            for t in answer.topics
            for p in t.partitions
        }
        return {"error": answer.error_code, "moving": dict(sorted(moving.items()))}

    async def write(self, path: str, data: str) -> None:
        """Write any znode, like an operator with a ZooKeeper shell."""
        mode = CreateMode.PERSISTENT_SEQUENTIAL if path.endswith("_") else CreateMode.PERSISTENT
        await self.zk.create(path, data.encode(), mode)

    async def delete(self, path: str) -> None:
        await self.zk.delete(path)

    async def _all(self, ops: Sequence[Op]) -> list[OpResult]:
        results = await self.zk.multi(ops)
        failed = [result for result in results if isinstance(result, Exception)]
        assert not failed, failed
        return results

    async def _ask(self, api_key: ApiKey, version: int, request: Any) -> Any:
        """Ask on the inter-broker listener, where a controller accepts requests of brokers and operators."""
        path = broker_id.path(BrokerId(CONTROLLER))
        endpoint = broker_id.decode(path, (await self.zk.get(path)).data).endpoint(LISTENER)
        assert isinstance(endpoint, Endpoint)
        connection = BrokerConnection(self._network, endpoint.host, endpoint.port, "script", self._clock)
        await connection.connect()
        try:
            body = await connection.request(api_key, version, [encode_request(request, version)], timeout=30.0)
            return decode_response(api_key, version, body)
        finally:
            await connection.close()


def _ids(replicas: Replicas) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, replicas))


def _assignments(partitions: Mapping[int, Replicas]) -> bytes:
    return topic.encode({n: Assignment(_ids(replicas)) for n, replicas in partitions.items()})


def _by_topic(partitions: Sequence[str]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for partition in map(name, partitions):
        grouped.setdefault(partition.topic, []).append(partition.partition)
    return grouped


def document(node: Node) -> Any:
    """JSON is parsed, because a hash map has its own order of keys."""
    try:
        return orjson.loads(node.data or b"null")
    except orjson.JSONDecodeError:
        return node.data
