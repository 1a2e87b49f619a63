"""Stub brokers that record every control request and answer it like a broker that obeys.

They hold no replicas, so tests see only what a controller decides, commits and sends. The test does the rest; for
example, it writes ISR changes as a leader would. They register in ZooKeeper like real brokers. A *life* is the number
of a registration: unlike broker epochs (czxids), lives can be compared between two clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from klamm.bench.stubs import HOST, LISTENER, StubBroker
from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.model.ports import Buffer, Clock, Create, CreateMode, Delete, Network, Set, Stat
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import broker_id


class Received(NamedTuple):
    api_key: ApiKey
    version: int
    body: bytes


class RecordingBroker(StubBroker):
    def __init__(self, broker: int, network: Network, clock: Clock, connect: Callable[[], ZooKeeperClient]) -> None:
        super().__init__(broker, network, clock, connect)
        self.requests: list[Received] = []
        self.failed: set[TopicPartition] = set()
        """Replicas on a failed log directory, for which LeaderAndIsr is answered with an error."""
        self._lives: list[int] = []

    @property
    def epoch(self) -> int:
        return self._lives[-1]

    def life(self, epoch: int) -> int:
        """1 for the first registration, 2 for the second; returns an unknown epoch unchanged."""
        return self._lives.index(epoch) + 1 if epoch in self._lives else epoch

    async def register(self) -> None:
        await super().register()
        assert self._zk is not None
        self._lives.append((await self._zk.get(broker_id.path(self.id))).stat.czxid)

    async def bounce(self) -> None:
        """Register again in one transaction: a restart so quick that no controller can see a gap."""
        assert self._zk is not None
        path = broker_id.path(self.id)
        create = Create(path, None, CreateMode.EPHEMERAL)
        *_, written = await self._zk.multi([Delete(path), create, Set(path, self.document(), 0)])
        assert isinstance(written, Stat), written
        self._lives.append(written.czxid)

    def begin_life(self, epoch: int) -> None:
        """Note a registration that another session wrote."""
        self._lives.append(epoch)

    async def advertise(self, *more: Endpoint) -> None:
        """Add endpoints to the current registration."""
        assert self._zk is not None
        await self._zk.set(broker_id.path(self.id), self.document(more))

    def document(self, more: Sequence[Endpoint] = ()) -> bytes:
        """The content of its registration znode."""
        endpoint = Endpoint(LISTENER, HOST, self._listener.port)
        return broker_id.encode(Broker(self.id, (endpoint, *more)), self._clock.wall_ms())

    async def _handle(self, context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        await super()._handle(context, header, body)
        self.requests.append(Received(header.api_key, header.api_version, bytes(body)))
        request = decode_request(header.api_key, header.api_version, body)
        return [encode_response(self._answer(header.api_key, request), header.api_version)]

    def _answer(self, api_key: ApiKey, request: object) -> object:
        if api_key is ApiKey.UPDATE_METADATA:
            return response_class(ApiKey.UPDATE_METADATA)(error_code=0)
        if api_key is ApiKey.STOP_REPLICA:
            cls = response_class(ApiKey.STOP_REPLICA)
            answered = {name: ErrorCode.NONE for name, _, _ in iter_stopped_replicas(request)}
        else:
            cls = response_class(ApiKey.LEADER_AND_ISR)
            told = [TopicPartition(topic, s.partition_index) for topic, s in iter_partition_states(request)]
            answered = {name: self._error(name) for name in told}
        errors = [
            cls.PartitionError(topic_name=topic, partition_index=partition, error_code=int(error))
            for (topic, partition), error in answered.items()
        ]
        return cls(error_code=0, partition_errors=errors)

    def _error(self, partition: TopicPartition) -> ErrorCode:
        return ErrorCode.KAFKA_STORAGE_ERROR if partition in self.failed else ErrorCode.NONE
