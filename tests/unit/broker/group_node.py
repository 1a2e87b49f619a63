"""A broker that coordinates groups, in virtual time: real log, real handlers, requests as bytes; no sockets.

The test plays the controller, the clients and, where it matters, the follower that acknowledges.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from klamm.broker.broker import BrokerNode
from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.internal_topic import partition_for
from klamm.log.log_manager import LogManager
from klamm.log.validation import AppendOrigin
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.control import MetadataUpdate, PartitionMetadata, PartitionOrder, Sender
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Ports
from klamm.model.requests import ANONYMOUS, ClientConnection, RequestContext
from klamm.security.authorizer import AllowAll
from klamm.security.quotas import ClientQuotas
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.loop import VirtualClock, run_in_virtual_time
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.zookeeper import InMemoryZooKeeper
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    iter_batches,
    iter_records,
)
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.znodes import topic
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

OFFSETS = "__consumer_offsets"
PARTITIONS = 2
"""The partitions of `__consumer_offsets`."""
GROUP = "group"
HOME = partition_for(GROUP, PARTITIONS)
SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
BOTH = (BrokerId(1), BrokerId(2))
RANGE = (("range", b""),)
MINUTE_MS = 60_000


class Silent:
    is_active = False

    def emit(self, records: Any) -> None: ...


class GroupNode:
    def __init__(self, node: BrokerNode, zk: InMemoryZooKeeper, clock: VirtualClock, metrics: MetricsRegistry) -> None:
        self.node = node
        self.metrics = metrics
        self.zk = zk
        self.clock = clock
        self.client_id: str | None = "client"
        self.connection: ClientConnection | None = None

    # --- the controller's part ---

    async def told(self, **topics: int) -> None:
        """Topics and their numbers of partitions; -1 tells that one of two partitions is deleted."""
        brokers = [Broker(b, (Endpoint("CLIENT", f"host{b}", 9090),), None) for b in BOTH]
        entries = []
        for name, count in topics.items():
            leader = BrokerId(1 if count > 0 else -2)
            state = PartitionMetadata(leader, LeaderEpoch(0), BOTH, BOTH, ())
            entries.append((name, [(p, state) for p in range(abs(count))]))
        await self.node.replicas.update_metadata(MetadataUpdate(SENDER, brokers, entries))

    async def order(self, partition: int, leader: int = 1, epoch: int = 0, isr: Sequence[int] = (1,)) -> None:
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), tuple(BrokerId(b) for b in isr), ControllerEpoch(1))
        order = PartitionOrder(TopicPartition(OFFSETS, partition), state, 0, Assignment(BOTH), False)
        answer = await self.node.replicas.leader_and_isr(SENDER, [order])
        assert set(answer.partitions.values()) == {ErrorCode.NONE}

    async def lead(self, *, epoch: int = 0, isr: Sequence[int] = (1,)) -> None:
        """Lead every partition of the topic, and wait until they are loaded."""
        for partition in range(PARTITIONS):
            await self.order(partition, epoch=epoch, isr=isr)
        await asyncio.sleep(0.001)

    async def loaded(self) -> None:
        while self.node.groups.registry.ownership.is_loading:
            await asyncio.sleep(0)

    async def fail_over(self, epoch: int = 10) -> None:
        """Lose the leadership and get it back: everything is loaded from the log."""
        self.node.replicas.fetchers.add = lambda *_: None  # type: ignore[method-assign]
        for partition in range(PARTITIONS):
            await self.order(partition, leader=2, epoch=epoch)
        await self.lead(epoch=epoch + 1)

    def partition(self, number: int = HOME) -> Any:
        return self.node.replicas.partitions[TopicPartition(OFFSETS, number)]

    def follower_fetches(self, number: int = HOME) -> None:
        """Broker 2 has everything, so what waits for it is acknowledged."""
        end = self.partition(number).log.log_end_offset
        self.node.replicas.follower_fetched(TopicPartition(OFFSETS, number), BrokerId(2), end, 0)

    # --- the log ---

    def write(self, *records: tuple[bytes, bytes | None], number: int = HOME, **batch: Any) -> None:
        """Put records into the log behind the coordinator's back."""
        made = [Record(key, value, self.clock.wall_ms()) for key, value in records]
        self.write_batch(build_batch(made, **batch), number)

    def write_batch(self, batch: bytes, number: int = HOME) -> None:
        partition = self.partition(number)
        partition.append_as_leader(batch, acks=1, origin=AppendOrigin.COORDINATOR)
        self.node.replicas.after_append(partition)

    def write_marker(self, *, commit: bool, producer: int = 7, epoch: int = 0, number: int = HOME) -> None:
        marker = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, 0)
        now_ms = self.clock.wall_ms()
        batch = build_end_transaction_marker(marker, timestamp=now_ms, producer_id=producer, producer_epoch=epoch)
        self.write_batch(batch, number)

    def records(self, number: int = HOME) -> list[Record]:
        log = self.partition(number).log
        data = log.read(log.log_start_offset, 1 << 24, upper_bound=log.log_end_offset, at_least_one=True).records
        return [r for at, header in iter_batches(data) for r in iter_records(data[at : at + header.size_in_bytes])]

    # --- the clients' part ---

    def group(self, name: str = GROUP) -> Group | None:
        return self.node.groups.registry.groups.get(name)

    @property
    def known(self) -> Group:
        return self.node.groups.registry.groups[GROUP]

    @property
    def state(self) -> str:
        return self.known.state.value

    async def ask(self, key: ApiKey, version: int | None = None, /, **fields: Any) -> Any:
        version = APIS[key].max_version if version is None else version
        body = encode_request(request_class(key)(**fields), version)
        context = RequestContext(ANONYMOUS, "CLIENT", self.client_id, "10.0.0.7:4711", False, self.connection)
        chunks = await self.node.handle(context, RequestHeader(key, version, 1, "test"), memoryview(body))
        assert chunks is not None
        return decode_response(key, version, b"".join(chunks))

    async def join(
        self,
        member: str = "",
        *,
        group: str = GROUP,
        version: int = 7,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session: int = 1_000,
        rebalance: int = 500,
    ) -> Any:
        cls = request_class(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
        return await self.ask(
            ApiKey.JOIN_GROUP,
            version,
            group_id=group,
            session_timeout_ms=session,
            rebalance_timeout_ms=rebalance,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[cls(name=name, metadata=metadata) for name, metadata in protocols],
        )

    async def sync(
        self,
        member: str,
        generation: int = 1,
        *,
        group: str = GROUP,
        version: int = 3,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        **assignments: bytes,
    ) -> Any:
        """Keyword arguments are assignments: their names are member ids with `_` for `-`, or `me`."""
        cls = request_class(ApiKey.SYNC_GROUP).SyncGroupRequestAssignment
        names = {"me": member, **{name.replace("-", "_"): name for name in (self.group(group) or Group("")).members}}
        return await self.ask(
            ApiKey.SYNC_GROUP,
            version,
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[cls(member_id=names[name], assignment=data) for name, data in assignments.items()],
        )

    async def heartbeat(
        self, member: str, generation: int = 1, *, instance: str | None = None, group: str = GROUP
    ) -> ErrorCode:
        answer = await self.ask(
            ApiKey.HEARTBEAT, group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
        )
        return ErrorCode(answer.error_code)

    async def leave(self, *members: tuple[str, str | None] | str, group: str = GROUP) -> Any:
        cls = request_class(ApiKey.LEAVE_GROUP).MemberIdentity
        pairs = [(m, None) if isinstance(m, str) else m for m in members]
        listed = [cls(member_id=m, group_instance_id=i) for m, i in pairs]
        return await self.ask(ApiKey.LEAVE_GROUP, group_id=group, members=listed)

    async def left(self, *members: tuple[str, str | None] | str) -> list[ErrorCode]:
        return [ErrorCode(m.error_code) for m in (await self.leave(*members)).members]

    async def commit(
        self,
        offsets: dict[TopicPartition, int] | int = 5,
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        version: int = 7,
        metadata: str | None = "",
        epoch: int = -1,
        retention_ms: int = -1,
        timestamp: int = -1,
    ) -> list[ErrorCode]:
        values = {TopicPartition("orders", 0): offsets} if isinstance(offsets, int) else offsets
        answer = await self.ask(
            ApiKey.OFFSET_COMMIT,
            version,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=_topics(
                request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic,
                values,
                committed_metadata=metadata,
                committed_leader_epoch=epoch,
                commit_timestamp=timestamp,
            ),
        )
        return [ErrorCode(p.error_code) for t in answer.topics for p in t.partitions]

    async def commit_in_transaction(
        self,
        offsets: dict[TopicPartition, int] | int = 5,
        *,
        producer: int = 7,
        producer_epoch: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        version: int = 3,
    ) -> list[ErrorCode]:
        values = {TopicPartition("orders", 0): offsets} if isinstance(offsets, int) else offsets
        answer = await self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id="id",
            group_id=group,
            producer_id=producer,
            producer_epoch=producer_epoch,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=_topics(
                request_class(ApiKey.TXN_OFFSET_COMMIT).TxnOffsetCommitRequestTopic, values, committed_metadata=""
            ),
        )
        return [ErrorCode(p.error_code) for t in answer.topics for p in t.partitions]

    async def fetch(
        self, *names: TopicPartition, group: str = GROUP, version: int = 7, stable: bool = False, all_of: bool = False
    ) -> Any:
        cls = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic
        topics = [cls(name=name.topic, partition_indexes=[name.partition]) for name in names]
        return await self.ask(
            ApiKey.OFFSET_FETCH,
            version,
            group_id=group,
            topics=None if all_of else topics,
            require_stable=stable,
        )

    async def offsets(self, *names: TopicPartition, group: str = GROUP, stable: bool = False) -> dict[Any, Any]:
        """Partition -> offset, or its error; without names of all partitions."""
        answer = await self.fetch(*names, group=group, stable=stable, all_of=not names)
        assert answer.error_code == 0
        return {
            TopicPartition(t.name, p.partition_index): ErrorCode(p.error_code) if p.error_code else p.committed_offset
            for t in answer.topics
            for p in t.partitions
        }

    async def describe(self, name: str = GROUP) -> Any:
        return (await self.ask(ApiKey.DESCRIBE_GROUPS, groups=[name])).groups[0]

    async def delete(self, name: str = GROUP) -> ErrorCode:
        return ErrorCode((await self.ask(ApiKey.DELETE_GROUPS, groups_names=[name])).results[0].error_code)

    async def delete_offsets(self, *names: TopicPartition, group: str = GROUP) -> Any:
        cls = request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic
        part = cls.OffsetDeleteRequestPartition
        topics = [cls(name=n.topic, partitions=[part(partition_index=n.partition)]) for n in names]
        answer = await self.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=topics)
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return [ErrorCode(p.error_code) for t in answer.topics for p in t.partitions]

    # --- whole groups ---

    async def joined(self, count: int = 1, **fields: Any) -> list[Any]:
        """The answers of members that joined together, the leader's first; the group awaits the assignment."""
        tasks = [asyncio.create_task(self.join(version=5, **_of(fields, number))) for number in range(count)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0)
            if _of(fields, number).get("instance") is None:
                given = await task
                assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
                tasks[number] = asyncio.create_task(self.join(given.member_id, version=5, **_of(fields, number)))
        answers = [await task for task in tasks]
        assert {answer.error_code for answer in answers} == {0}
        return sorted(answers, key=lambda answer: not answer.members)

    async def stable(self, count: int = 1, **fields: Any) -> list[str]:
        """The ids of the members of a stable group, the leader first; each is assigned its own number."""
        answers = await self.joined(count, **fields)
        ids = [answer.member_id for answer in answers]
        generation, name = answers[0].generation_id, fields.get("group", GROUP)
        cls = request_class(ApiKey.SYNC_GROUP).SyncGroupRequestAssignment
        parts = [cls(member_id=m, assignment=b"part %d" % n) for n, m in enumerate(ids)]
        for number, member in enumerate(ids):
            answer = await self.ask(
                ApiKey.SYNC_GROUP,
                3,
                group_id=name,
                generation_id=generation,
                member_id=member,
                assignments=parts if number == 0 else [],
            )
            assert (answer.error_code, bytes(answer.assignment)) == (0, b"part %d" % number)
        return ids


def _of(fields: dict[str, Any], number: int) -> dict[str, Any]:
    """The fields of one member: a list has one value for each."""
    return {key: value[number] if isinstance(value, list) else value for key, value in fields.items()}


def _topics(cls: Any, values: dict[TopicPartition, int], **fields: Any) -> list[Any]:
    part = next(each for name, each in vars(cls).items() if name.endswith("Partition") and inspect.isclass(each))
    known = {key: value for key, value in fields.items() if key in part.defaults}
    grouped: dict[str, list[Any]] = {}
    for name, offset in values.items():
        extra = dict(known)
        if isinstance(extra.get("committed_metadata"), dict):
            extra["committed_metadata"] = extra["committed_metadata"][name]
        grouped.setdefault(name.topic, []).append(
            part(partition_index=name.partition, committed_offset=offset, **extra)
        )
    return [cls(name=name, partitions=parts) for name, parts in grouped.items()]


@asynccontextmanager
async def running_node(**settings: Any) -> AsyncIterator[GroupNode]:
    loop: Any = asyncio.get_running_loop()
    clock = VirtualClock(loop)
    zk = InMemoryZooKeeper(session_timeout_ms=18_000)
    for path in PERSISTENT_PATHS:
        zk.put(path)
    zk.put(topic.path(OFFSETS), topic.encode(dict.fromkeys(range(PARTITIONS), Assignment(BOTH))))
    config = BrokerConfig(
        **{
            "broker_id": 1,
            "log_dirs": ("/data",),
            "group_min_session_timeout_ms": 10,
            "group_initial_rebalance_delay_ms": 50,
            **settings,
        }
    )
    metrics = MetricsRegistry()
    disk = SimulatedDisk(clock, random.Random(1))
    logs = LogManager(disk, clock, config, random.Random(1))
    logs.directories.lock()
    node = BrokerNode(
        broker_id=BrokerId(1),
        cluster_id="cluster",
        config=config,
        ports=Ports(clock, None, disk, random.Random(2)),  # type: ignore[arg-type]
        zk=zk,
        logs=logs,
        events=Silent(),
        metrics=metrics,
        authorizer=AllowAll(),
        quotas=ClientQuotas(clock),
        controller=Silent(),  # type: ignore[arg-type]
    )
    async with AsyncExitStack() as stack:
        await node.load_logs()
        await stack.enter_async_context(logs.running())
        await stack.enter_async_context(node.running())
        broker = GroupNode(node, zk, clock, metrics)
        await broker.told(__consumer_offsets=PARTITIONS, orders=4, payments=2)
        yield broker
        assert node.replicas.guard.failures == {}, "a defect that a guard caught"


Test = Callable[..., Coroutine[Any, Any, None]]


def coordinator(*, led: bool = True, **settings: Any) -> Callable[[Test], Callable[..., None]]:
    """Decorator: the test gets a node as its first argument, and runs in virtual time."""

    def decorate(test: Test) -> Callable[..., None]:
        async def main(*args: Any, **kwargs: Any) -> None:
            async with running_node(**settings) as node:
                if led:
                    await node.lead()
                await test(node, *args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> None:
            run_in_virtual_time(main(*args, **kwargs))

        parameters = list(inspect.signature(test).parameters.values())[1:]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(work)


async def pass_ms(milliseconds: float) -> None:
    """Let this much virtual time pass, and everything happen that is due in it."""
    await asyncio.sleep(milliseconds / 1000)
    for _ in range(5):
        await asyncio.sleep(0)
