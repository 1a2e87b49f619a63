"""Brokers for virtual time: they obey control requests with the fences of Kafka, but store no records.

A leader adds followers that are told to follow and keep up to the ISR, by the conditional write of a real leader, and
announces it. Real brokers do more, but this is all that the writes of a controller depend on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple, Protocol

from klamm.model.brokers import Broker, Endpoint
from klamm.model.errors import BadVersion, ErrorCode, NoNode
from klamm.model.ids import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Buffer, CreateMode
from klamm.model.requests import RequestContext
from klamm.net.listener import Listener
from klamm.wire.apis import ApiKey
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import RequestHeader
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import broker_id, isr_change, partition_state, registration

LISTENER: Final = "PLAINTEXT"
PORT: Final = 9092
REQUEST_S: Final = 0.03
"""A broker takes time to handle a request, so requests lag behind the writes and are lost when the controller dies."""
CATCH_UP_S: Final = 0.7
"""Time until a follower has caught up."""


class Surroundings(Protocol):
    """What a broker needs from the cluster."""

    def client(self, host: str) -> ZooKeeperClient: ...

    def listener(self, host: str, obedience: Obedience) -> Listener: ...

    def follows(self, broker: BrokerId, name: TopicPartition, leader: LeaderAndIsr) -> bool: ...


class Role(NamedTuple):
    state: LeaderAndIsr
    zk_version: int
    replicas: tuple[BrokerId, ...]


class Obedience:
    """How a broker handles control requests: with the fences of Kafka, without records."""

    def __init__(self) -> None:
        self.epoch = BrokerEpoch(-1)
        self._controller_epoch = ControllerEpoch(0)
        self.roles: dict[TopicPartition, Role] = {}

    async def handle(self, context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        request: Any = decode_request(header.api_key, header.api_version, body)
        await asyncio.sleep(REQUEST_S)
        response = _RESPONSES[header.api_key](error_code=ErrorCode.NONE)
        if request.broker_epoch < self.epoch:
            response.error_code = ErrorCode.STALE_BROKER_EPOCH
        elif request.controller_epoch < self._controller_epoch:
            response.error_code = ErrorCode.STALE_CONTROLLER_EPOCH
        else:
            self._controller_epoch = ControllerEpoch(request.controller_epoch)
            if header.api_key is ApiKey.LEADER_AND_ISR:
                asked = [(TopicPartition(t, e.partition_index), e) for t, e in iter_partition_states(request)]
                codes = [(name, self._follow(name, entry)) for name, entry in asked]
                response.partition_errors = _errors(response_class(ApiKey.LEADER_AND_ISR).PartitionError, codes)
            elif header.api_key is ApiKey.STOP_REPLICA:
                codes = [(name, self._stop(name, e, d)) for name, e, d in iter_stopped_replicas(request)]
                response.partition_errors = _errors(response_class(ApiKey.STOP_REPLICA).PartitionError, codes)
        return [encode_response(response, header.api_version)]

    def _follow(self, name: TopicPartition, entry: Any) -> ErrorCode:
        known = self.roles.get(name)
        if known is not None and entry.leader_epoch <= known.state.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        epochs = LeaderEpoch(entry.leader_epoch), ControllerEpoch(entry.controller_epoch)
        state = LeaderAndIsr(BrokerId(entry.leader), epochs[0], tuple(entry.isr), epochs[1])
        self.roles[name] = Role(state, entry.zk_version, tuple(entry.replicas))
        return ErrorCode.NONE

    def _stop(self, name: TopicPartition, epoch: int, delete: bool) -> ErrorCode:
        known = self.roles.get(name)
        if known is not None and epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and epoch < known.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if delete:
            self.roles.pop(name, None)
        return ErrorCode.NONE


class SimpleBroker:
    """Add followers that are told to follow and keep up to the ISR."""

    def __init__(self, world: Surroundings, broker: int) -> None:
        self.id = BrokerId(broker)
        self.host = f"broker-{broker}"
        self._world = world
        self._stack = AsyncExitStack()
        self._obedience = Obedience()
        self.zk: ZooKeeperClient | None = None

    @property
    def runs(self) -> bool:
        return self.zk is not None

    @property
    def epoch(self) -> BrokerEpoch:
        return self._obedience.epoch

    @property
    def roles(self) -> dict[TopicPartition, Role]:
        return self._obedience.roles

    async def start(self) -> None:
        await self._stack.enter_async_context(self._world.listener(self.host, self._obedience).running())
        self.zk = await self._stack.enter_async_context(self._world.client(self.host).running())
        self._obedience.epoch = await registration.register(self.zk, self.id, document_of(self.id, self.host))
        leading = asyncio.create_task(self._lead())
        self._stack.callback(leading.cancel)

    async def stop(self) -> None:
        """Close the session, so that the registration goes at once. The replicas stay on disk."""
        self.zk = None
        await self._stack.aclose()

    async def _lead(self) -> None:
        while True:
            await asyncio.sleep(CATCH_UP_S)
            changed = [name for name in sorted(self.roles) if await self._widen_isr(name)]
            if changed and self.zk is not None:
                await self.zk.create(isr_change.PREFIX, isr_change.encode(changed), CreateMode.PERSISTENT_SEQUENTIAL)

    async def _widen_isr(self, name: TopicPartition) -> bool:
        role = self.roles.get(name)
        if role is None or role.state.leader != self.id or self.zk is None:
            return False
        state = role.state
        joining = [b for b in role.replicas if b not in state.isr and self._world.follows(b, name, state)]
        if not joining:
            return False
        wider = state._replace(isr=(*state.isr, *joining))
        try:
            stat = await self.zk.set(partition_state.path(name), partition_state.encode(wider), role.zk_version)
        except (BadVersion, NoNode):
            return False  # the controller has decided otherwise and will tell this broker soon
        if self.roles.get(name) == role:
            self.roles[name] = role._replace(state=wider, zk_version=stat.version)
        return True


def document_of(broker: int, host: str) -> bytes:
    return broker_id.encode(Broker(BrokerId(broker), (Endpoint(LISTENER, host, PORT),)), 0)


def _errors(entry: Any, codes: Sequence[tuple[TopicPartition, ErrorCode]]) -> list[Any]:
    return [entry(topic_name=n.topic, partition_index=n.partition, error_code=code) for n, code in codes]


_RESPONSES: Final[dict[ApiKey, Any]] = {
    ApiKey.LEADER_AND_ISR: response_class(ApiKey.LEADER_AND_ISR),
    ApiKey.STOP_REPLICA: response_class(ApiKey.STOP_REPLICA),
    ApiKey.UPDATE_METADATA: response_class(ApiKey.UPDATE_METADATA),
}
