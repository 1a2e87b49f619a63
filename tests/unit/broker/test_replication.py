"""Brokers with real logs and real listeners; the test plays the controller. All requests go over the wire as bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.broker import BrokerNode
from klamm.log.disk import FileDisk
from klamm.log.log_manager import LogManager
from klamm.model import guard
from klamm.model.brokers import SecurityProtocol
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Ports
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.listener import Listener
from klamm.net.network import AsyncioNetwork
from klamm.security.authorizer import AllowAll
from klamm.security.quotas import ClientQuotas
from klamm.telemetry.metrics import MetricsRegistry
from klamm.wire.apis import ApiKey
from klamm.wire.batch import iter_batches
from klamm.wire.fetch import FetchPartition, decode_follower_response, encode_follower_request
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.produce import encode_request as encode_produce
from klamm.wire.records import Record, build_batch
from klamm.zookeeper.znodes import config, partition_state

TP = TopicPartition("orders", 0)
TIMEOUT = 10.0


class Events:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit(self, records: Any) -> None:
        self.seen += records


class NoController:
    is_active = False

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        return [TP]


class Node:
    def __init__(self, broker: BrokerNode, internal: Listener, client: Listener, events: Events) -> None:
        self.broker = broker
        self.internal = internal
        self.client = client
        self.events = events

    async def ask(self, key: ApiKey, version: int, request: Any, *, internal: bool = False) -> Any:
        body = await self.ask_raw(key, version, [encode_request(request, version)], internal=internal)
        return decode_response(key, version, body)

    async def ask_raw(self, key: ApiKey, version: int, chunks: Any, *, internal: bool = False) -> memoryview:
        port = (self.internal if internal else self.client).port
        connection = BrokerConnection(AsyncioNetwork(), "127.0.0.1", port, "test", SystemClock())
        await connection.connect(TIMEOUT)
        try:
            return await connection.request(key, version, chunks, timeout=TIMEOUT)
        finally:
            await connection.close()

    async def produce(self, *values: bytes, acks: int = -1, timeout_ms: int = 10_000, **batch: Any) -> Any:
        records = build_batch([Record(key=None, value=value, timestamp=1) for value in values], **batch)
        chunks = encode_produce(8, acks=acks, timeout_ms=timeout_ms, entries=[(TP, records)])
        body = await self.ask_raw(ApiKey.PRODUCE, 8, chunks)
        return decode_response(ApiKey.PRODUCE, 8, body).responses[0].partition_responses[0]

    async def fetch(self, offset: int, *, max_wait_ms: int = 0, epoch: int = -1, version: int = 11) -> Any:
        cls = request_class(ApiKey.FETCH)
        entry = cls.FetchTopic.FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            current_leader_epoch=epoch,
            log_start_offset=-1,
        )
        request = cls(
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[cls.FetchTopic(topic=TP.topic, partitions=[entry])],
            forgotten_topics_data=[],
            rack_id="",
        )
        return (await self.ask(ApiKey.FETCH, version, request)).responses[0].partitions[0]

    @property
    def log(self) -> Any:
        return self.broker.replicas.partitions[TP].log


class Cluster:
    """Two brokers; `lead` does what a controller would."""

    def __init__(self, nodes: dict[int, Node], zk: Any) -> None:
        self.nodes = nodes
        self.zk = zk
        self.controller_epoch = 1

    async def tell_metadata(self, *, alive: tuple[int, ...] = (1, 2), leader: int = 1, epoch: int = 0) -> None:
        cls = request_class(ApiKey.UPDATE_METADATA)
        live = [
            cls.LiveBroker(id=i, endpoints=[self._endpoint(i, n) for n in ("INTERNAL", "CLIENT")], rack=None)
            for i in alive
        ]
        state = cls.TopicState.PartitionState(
            partition_index=0,
            controller_epoch=self.controller_epoch,
            leader=leader,
            leader_epoch=epoch,
            isr=[1, 2],
            zk_version=0,
            replicas=[1, 2],
            offline_replicas=[],
        )
        for node in self.nodes.values():
            request = cls(
                controller_id=1,
                controller_epoch=self.controller_epoch,
                broker_epoch=-1,
                topic_states=[cls.TopicState(topic_name=TP.topic, partition_states=[state])],
                live_brokers=live,
            )
            assert (await node.ask(ApiKey.UPDATE_METADATA, 6, request, internal=True)).error_code == 0

    def _endpoint(self, broker: int, name: str) -> Any:
        node = self.nodes[broker]
        port = (node.internal if name == "INTERNAL" else node.client).port
        return request_class(ApiKey.UPDATE_METADATA).LiveBroker.LiveEndpoint(
            port=port, host="127.0.0.1", listener=name, security_protocol=SecurityProtocol.PLAINTEXT
        )

    def leader_and_isr(self, leader: int, epoch: int, isr: tuple[int, ...] = (1, 2), **head: int) -> Any:
        cls = request_class(ApiKey.LEADER_AND_ISR)
        state = cls.TopicState.PartitionState(
            partition_index=0,
            controller_epoch=self.controller_epoch,
            leader=leader,
            leader_epoch=epoch,
            isr=list(isr),
            zk_version=self.zk.tree.nodes[partition_state.path(TP)].version,
            replicas=[1, 2],
            adding_replicas=[],
            removing_replicas=[],
            is_new=False,
        )
        return cls(
            controller_id=1,
            controller_epoch=head.get("controller_epoch", self.controller_epoch),
            broker_epoch=head.get("broker_epoch", -1),
            topic_states=[cls.TopicState(topic_name=TP.topic, partition_states=[state])],
            live_leaders=[],
        )

    async def lead(self, leader: int, epoch: int, isr: tuple[int, ...] = (1, 2)) -> list[int]:
        brokers = tuple(BrokerId(b) for b in isr)
        state = LeaderAndIsr(BrokerId(leader), LeaderEpoch(epoch), brokers, ControllerEpoch(self.controller_epoch))
        path = partition_state.path(TP)
        self.zk.put(path, partition_state.encode(state))
        codes = []
        for node in self.nodes.values():
            request = self.leader_and_isr(leader, epoch, isr)
            answer = await node.ask(ApiKey.LEADER_AND_ISR, 4, request, internal=True)
            assert answer.error_code == 0
            codes.append(answer.partition_errors[0].error_code)
        return codes


@asynccontextmanager
async def running_node(broker_id: int, directory: Path, zk: Any, lag_max_ms: int = 400) -> AsyncIterator[Node]:
    config = BrokerConfig(
        broker_id=broker_id,
        log_dirs=(str(directory),),
        inter_broker_listener_name="INTERNAL",
        replica_fetch_backoff_ms=20,
        replica_fetch_wait_max_ms=50,
        replica_lag_time_max_ms=lag_max_ms,
    )
    async with AsyncExitStack() as stack:
        disk, clock, network = FileDisk(), SystemClock(), AsyncioNetwork()
        stack.callback(disk.close)
        logs = LogManager(disk, clock, config, random.Random(1))
        logs.directories.lock()
        await logs.load(lambda name: broker._configs.defaults)
        events = Events()
        broker = BrokerNode(
            broker_id=BrokerId(broker_id),
            cluster_id="cluster",
            config=config,
            ports=Ports(clock, network, disk, random.Random(2)),
            zk=zk,
            logs=logs,
            events=events,
            metrics=MetricsRegistry(),
            authorizer=AllowAll(),
            quotas=ClientQuotas(clock),
            controller=NoController(),
        )
        await stack.enter_async_context(logs.running())
        await stack.enter_async_context(broker.running())
        listeners = [
            Listener(network, name, "127.0.0.1", 0, broker.handle, privileged=privileged, frame_bytes_max=1 << 20)
            for name, privileged in (("INTERNAL", True), ("CLIENT", False))
        ]
        for listener in listeners:
            await stack.enter_async_context(listener.running())
        yield Node(broker, listeners[0], listeners[1], events)


@pytest.fixture
def lag_max_ms(request: pytest.FixtureRequest) -> int:
    """A test in which the ISR must stay whole asks for more, because a busy machine may take that long."""
    return int(getattr(request, "param", 400))


@pytest.fixture
async def cluster(tmp_path: Path, zk: Any, lag_max_ms: int) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        nodes = {
            i: await stack.enter_async_context(running_node(i, tmp_path / f"broker-{i}", zk, lag_max_ms))
            for i in (1, 2)
        }
        cluster = Cluster(nodes, zk)
        await cluster.tell_metadata()
        yield cluster


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.005)


async def test_acknowledged_by_both_and_readable(cluster: Cluster) -> None:
    assert await cluster.lead(1, epoch=0) == [0, 0]
    leader, follower = cluster.nodes[1], cluster.nodes[2]
    produced = await leader.produce(b"a", b"b")
    assert (produced.error_code, produced.base_offset) == (0, 0)
    assert follower.log.log_end_offset == 2, "acks=all means that the follower has it"
    assert (await leader.produce(b"c")).base_offset == 2
    fetched = await leader.fetch(0)
    assert (fetched.error_code, fetched.high_watermark) == (0, 3)
    assert fetched.aborted_transactions is None
    await eventually(lambda: follower.log.high_watermark == 3)
    assert bytes(follower.log.read(0, 10_000, upper_bound=3, at_least_one=False).records) == bytes(
        leader.log.read(0, 10_000, upper_bound=3, at_least_one=False).records
    )
    from_follower = await follower.fetch(0)
    assert (from_follower.error_code, from_follower.high_watermark) == (0, 3)


async def test_long_poll_ends_with_the_record(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    waiting = asyncio.create_task(leader.fetch(0, max_wait_ms=9_000))
    await eventually(lambda: len(leader.broker.replicas.waiting_fetches) >= 1)
    await leader.produce(b"x")
    fetched = await asyncio.wait_for(waiting, 5)
    assert fetched.records


@pytest.mark.case("LEL-02")
async def test_leadership_moves_and_the_epoch_is_in_the_batches(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=0)
    one, two = cluster.nodes[1], cluster.nodes[2]
    await one.produce(b"a")
    assert await cluster.lead(2, epoch=1) == [0, 0]
    produced = await two.produce(b"b")
    assert (produced.error_code, produced.base_offset) == (0, 1)
    assert (await one.produce(b"no")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for node in (one, two):
        assert [tuple(entry) for entry in node.log.epochs.entries] == [(0, 0), (1, 1)]
        written = node.log.read(0, 10_000, upper_bound=2, at_least_one=True).records
        assert [header.leader_epoch for _, header in iter_batches(memoryview(written))] == [0, 1]
    assert one.log.log_end_offset == 2
    roles = [(e.from_state, e.to_state, e.leader_epoch) for e in one.events.seen if e.cause.startswith("leader-and")]
    assert roles == [("none", "leader", 0), ("leader", "follower", 1)]


@pytest.mark.case("EPO-11")
async def test_a_follower_learns_an_epoch_with_its_first_batch(cluster: Cluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]

    def epochs(node: Node) -> list[tuple[int, int]]:
        return [(entry.epoch, entry.start_offset) for entry in node.log.epochs.entries]

    await cluster.lead(1, epoch=0)
    await one.produce(b"a")
    assert epochs(one) == epochs(two) == [(0, 0)]
    await cluster.lead(1, epoch=1)  # as after a restart of the follower
    assert (epochs(one), epochs(two)) == ([(0, 0), (1, 1)], [(0, 0)])
    await one.produce(b"b")
    assert epochs(one) == epochs(two) == [(0, 0), (1, 1)]
    await cluster.lead(2, epoch=2)  # as after a restart of the leader
    assert (epochs(two), epochs(one)) == ([(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 1)])
    await two.produce(b"c")
    assert epochs(one) == epochs(two) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.case("RPM-02", "RPM-08")
@pytest.mark.parametrize("lag_max_ms", [60_000], indirect=True)
async def test_waiting_requests_hear_at_once_that_leadership_is_gone(cluster: Cluster) -> None:
    await cluster.tell_metadata(alive=(2,))  # the follower believes its leader dead, so nothing is replicated
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    produce = asyncio.create_task(leader.produce(b"a", timeout_ms=60_000))
    fetch = asyncio.create_task(leader.fetch(0, max_wait_ms=60_000, version=10))
    waiting = leader.broker.replicas
    await eventually(lambda: len(waiting.waiting_produces) == 1 and len(waiting.waiting_fetches) >= 1)
    await cluster.tell_metadata()
    await cluster.lead(2, epoch=1)
    assert (await asyncio.wait_for(produce, 5)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await asyncio.wait_for(fetch, 5)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_isr_shrinks_without_the_follower_and_grows_with_it(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    cluster.nodes[2].broker.replicas.fetchers.remove([TP])
    produced = await leader.produce(b"a")
    assert produced.error_code == 0, "committed once the follower has left the ISR"
    state = partition_state.decode("", cluster.zk.data(partition_state.path(TP)))
    assert state == LeaderAndIsr(BrokerId(1), LeaderEpoch(0), (BrokerId(1),), ControllerEpoch(1))
    manager = cluster.nodes[2].broker.replicas
    manager.fetchers.add([manager.partitions[TP]])
    partition = leader.broker.replicas.partitions[TP]
    await eventually(lambda: partition.isr == (1, 2))
    assert [e.cause for e in leader.events.seen][-2:] == ["isr-shrink", "isr-expand"]


@pytest.mark.case("LEL-01")
async def test_fencing_in_its_order(cluster: Cluster) -> None:
    cluster.zk.put(partition_state.path(TP), b"")
    node = cluster.nodes[1]
    node.broker.registered(BrokerEpoch(70))

    async def send(**head: int) -> int:
        request = cluster.leader_and_isr(1, 0, **head)
        return int((await node.ask(ApiKey.LEADER_AND_ISR, 4, request, internal=True)).error_code)

    assert await send(broker_epoch=69, controller_epoch=9) == ErrorCode.STALE_BROKER_EPOCH
    assert node.broker.replicas.controller_epoch == 1, "a request for another broker epoch changes nothing"
    assert await send(broker_epoch=70, controller_epoch=0) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert TP not in node.broker.replicas.partitions
    assert await send(broker_epoch=71, controller_epoch=2) == 0
    assert await send(broker_epoch=70, controller_epoch=1) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert node.broker.replicas.partitions[TP].is_leader


async def test_control_requests_are_refused_where_clients_connect(cluster: Cluster) -> None:
    cluster.zk.put(partition_state.path(TP), b"")
    answer = await cluster.nodes[1].ask(ApiKey.LEADER_AND_ISR, 4, cluster.leader_and_isr(1, 0))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert not cluster.nodes[1].broker.replicas.partitions


@pytest.mark.case("BEP-02", "BEP-03")
async def test_each_control_request_names_the_life_it_is_meant_for(cluster: Cluster) -> None:
    cluster.zk.put(partition_state.path(TP), b"")
    node, now = cluster.nodes[1], 70
    node.broker.registered(BrokerEpoch(now))
    metadata, stop = request_class(ApiKey.UPDATE_METADATA), request_class(ApiKey.STOP_REPLICA)
    stopped = stop.TopicState.PartitionState(partition_index=0, leader_epoch=0, delete_partition=True)

    async def send(key: ApiKey, version: int, broker_epoch: int) -> int:
        head = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": broker_epoch}
        request = {
            ApiKey.LEADER_AND_ISR: cluster.leader_and_isr(1, 0, broker_epoch=broker_epoch),
            ApiKey.UPDATE_METADATA: metadata(**head, topic_states=[], live_brokers=[]),
            ApiKey.STOP_REPLICA: stop(
                **head, topic_states=[stop.TopicState(topic_name=TP.topic, partition_states=[stopped])]
            ),
        }[key]
        return int((await node.ask(key, version, request, internal=True)).error_code)

    replicas, cache = node.broker.replicas, node.broker.replicas.metadata
    for key, version in ((ApiKey.LEADER_AND_ISR, 4), (ApiKey.UPDATE_METADATA, 6)):
        assert await send(key, version, now - 1) == ErrorCode.STALE_BROKER_EPOCH
    assert TP not in replicas.partitions
    assert cache.brokers, "the earlier metadata still holds"

    assert await send(ApiKey.LEADER_AND_ISR, 4, now) == 0
    assert replicas.partitions[TP].is_leader
    assert await send(ApiKey.UPDATE_METADATA, 6, now) == 0
    assert not cache.brokers
    assert await send(ApiKey.STOP_REPLICA, 3, now - 1) == ErrorCode.STALE_BROKER_EPOCH
    assert TP in replicas.partitions
    assert await send(ApiKey.STOP_REPLICA, 3, now) == 0
    assert TP not in replicas.partitions


@pytest.mark.case("RPM-09")
async def test_stop_replica_with_delete(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=3)
    leader = cluster.nodes[1]
    await leader.produce(b"a")
    fetch = asyncio.create_task(leader.fetch(1, max_wait_ms=60_000))
    await eventually(lambda: len(leader.broker.replicas.waiting_fetches) >= 1)
    cls = request_class(ApiKey.STOP_REPLICA)

    async def stop(epoch: int) -> int:
        state = cls.TopicState.PartitionState(partition_index=0, leader_epoch=epoch, delete_partition=True)
        request = cls(
            controller_id=1,
            controller_epoch=1,
            broker_epoch=-1,
            topic_states=[cls.TopicState(topic_name=TP.topic, partition_states=[state])],
        )
        answer = await leader.ask(ApiKey.STOP_REPLICA, 3, request, internal=True)
        return int(answer.partition_errors[0].error_code)

    assert await stop(2) == ErrorCode.FENCED_LEADER_EPOCH
    assert await stop(3) == 0, "an equal epoch is accepted"
    assert (await asyncio.wait_for(fetch, 5)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert TP not in leader.broker.replicas.partitions
    assert await stop(3) == 0, "a repeated request has nothing left to do"


async def test_silent_zookeeper_stops_acknowledgements(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=0)
    cluster.zk.silent_s = 12.1
    assert (await cluster.nodes[1].produce(b"a", acks=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.zk.silent_s = 11.9
    assert (await cluster.nodes[1].produce(b"a", acks=1)).error_code == 0


@pytest.mark.case("RPM-01", "RPM-03")
async def test_produce_refusals(cluster: Cluster) -> None:
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    assert (await leader.produce(b"a", acks=3)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    first = await leader.produce(b"a", b"b", b"c", producer_id=9, producer_epoch=0, base_sequence=0)
    again = await leader.produce(b"a", b"b", b"c", producer_id=9, producer_epoch=0, base_sequence=0)
    assert (first.error_code, again.error_code, again.base_offset) == (0, 0, 0)
    gap = await leader.produce(b"x", producer_id=9, producer_epoch=0, base_sequence=13)
    assert (gap.error_code, gap.log_start_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    assert leader.log.log_end_offset == 3


async def test_failed_produce_without_acks_closes_the_connection(cluster: Cluster) -> None:
    batch = build_batch([Record(key=None, value=b"x", timestamp=1)])
    chunks = encode_produce(8, acks=0, timeout_ms=100, entries=[(TopicPartition("nowhere", 0), batch)])
    with pytest.raises(ConnectionError):
        await cluster.nodes[1].ask_raw(ApiKey.PRODUCE, 8, chunks)


@pytest.mark.case("FRQ-02")
@pytest.mark.parametrize("epoch", [-1, 1, 0, 2])
async def test_epoch_fencing_of_consumers(cluster: Cluster, epoch: int) -> None:
    await cluster.lead(1, epoch=0)
    await cluster.lead(1, epoch=1)
    expected = {0: ErrorCode.FENCED_LEADER_EPOCH, 2: ErrorCode.UNKNOWN_LEADER_EPOCH}.get(epoch, ErrorCode.NONE)
    for node in cluster.nodes.values():
        assert (await node.fetch(0, epoch=epoch)).error_code == expected


async def test_a_transaction_that_no_coordinator_would_end_is_refused(cluster: Cluster) -> None:
    """It would hold back the last stable offset, and with it every read_committed consumer, for ever."""
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    refused = await leader.produce(b"x", producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    await leader.produce(b"y")
    assert (leader.log.log_end_offset, leader.log.last_stable_offset) == (1, 1)


async def test_a_log_that_comes_back_obeys_the_order_that_is_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker announces it like a failed directory, so the controller sends the same orders again."""
    monkeypatch.setattr(guard, "FIRST_PAUSE_S", 0.01)
    await cluster.lead(1, epoch=0)
    leader, follower = cluster.nodes[1], cluster.nodes[2]
    assert (await leader.produce(b"a")).error_code == 0
    follower.log.give_up(ValueError("memory and file differ"))
    assert TP not in follower.broker.replicas.partitions

    def events() -> int:
        return sum("log_dir_event_0" in path for path in cluster.zk.tree.nodes)

    await eventually(lambda: follower.broker.replicas.logs.get(TP) is not None and events() == 2)
    await cluster.lead(1, epoch=0)
    assert (await leader.produce(b"b")).error_code == 0
    await eventually(lambda: follower.log.log_end_offset == 2)


async def test_a_client_that_claims_to_be_a_replica_moves_nothing(cluster: Cluster) -> None:
    """On the clients' listener: neither by a fetch of its own, nor in the session of a replica."""
    await cluster.lead(1, epoch=0)
    leader = cluster.nodes[1]
    cluster.nodes[2].broker.replicas.fetchers.remove([TP])
    await eventually(lambda: not leader.broker.replicas.waiting_fetches.waiting)
    produce = asyncio.create_task(leader.produce(b"precious", timeout_ms=2_000))
    await eventually(lambda: leader.log.log_end_offset == 1)
    forged = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    entries = [FetchPartition(TP, 1, 1 << 20, 0, 0)]
    body = encode_follower_request(replica_id=2, partitions=entries, **forged)
    error, _, [answer] = decode_follower_response(await leader.ask_raw(ApiKey.FETCH, 11, body))
    assert (error, answer.error) == (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    stranger = encode_follower_request(replica_id=7, partitions=entries, **forged)
    _, _, [unknown] = decode_follower_response(await leader.ask_raw(ApiKey.FETCH, 11, stranger, internal=True))
    assert unknown.error is ErrorCode.UNKNOWN_LEADER_EPOCH, "not a replica of this partition"

    opened = encode_follower_request(
        replica_id=2, partitions=[FetchPartition(TP, 0, 1 << 20, 0, 0)], session_epoch=0, **forged
    )
    _, session, _ = decode_follower_response(await leader.ask_raw(ApiKey.FETCH, 11, opened, internal=True))
    assert session > 0
    continued = encode_follower_request(replica_id=2, partitions=entries, session_id=session, session_epoch=1, **forged)
    _, _, answers = decode_follower_response(await leader.ask_raw(ApiKey.FETCH, 11, continued))
    assert {answer.error for answer in answers} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert leader.log.high_watermark == 0
    await produce  # by an ISR without the replica, or not at all


def checkpointed(directory: Path) -> int | None:
    """The high watermark of the partition in a broker's checkpoint."""
    lines = (directory / "replication-offset-checkpoint").read_text().splitlines()[2:]
    return next((int(line.split()[2]) for line in lines if line.split()[:2] == [TP.topic, str(TP.partition)]), None)


@pytest.mark.case("LOG-24")
async def test_both_brokers_checkpoint_what_was_replicated(tmp_path: Path, zk: Any) -> None:
    zk.put(config.topic_path(TP.topic), config.encode({"segment.bytes": "200"}))
    directories = {number: tmp_path / f"broker-{number}" for number in (1, 2)}
    async with AsyncExitStack() as stack:
        nodes = {i: await stack.enter_async_context(running_node(i, path, zk)) for i, path in directories.items()}
        cluster = Cluster(nodes, zk)
        await cluster.tell_metadata()
        await cluster.lead(1, epoch=0)
        for number in range(2):
            assert (await nodes[1].produce(b"%d" % number)).error_code == 0
        await eventually(lambda: nodes[2].log.high_watermark == 2)
        for node in nodes.values():
            await node.broker.replicas.logs.checkpoint_high_watermarks()
        assert [checkpointed(path) for path in directories.values()] == [2, 2]
        for number in range(2, 20):
            assert (await nodes[1].produce(b"%d" % number * 20)).error_code == 0
        await eventually(lambda: nodes[2].log.high_watermark == 20)
        assert all(len(list(node.log.segments)) > 5 for node in nodes.values())
    assert [checkpointed(path) for path in directories.values()] == [20, 20]
