"""A simulated broker: it handles control requests like a real one, including the fences, but stores no records.

It is a simplified version of klamm's own broker (`broker/replica_manager.py`): it checks broker epoch, controller epoch
and leader epoch, follows only brokers that are known to be alive, and answers KAFKA_STORAGE_ERROR for partitions of a
failed log directory. It reports everything that it obeys to the checker. It also simulates a bad network for requests:
late answers, lost requests and lost answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from klamm.model.errors import ErrorCode
from klamm.model.ids import (
    EPOCH_DURING_DELETE,
    INITIAL_CONTROLLER_EPOCH,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.simulation.checker import Checker
from klamm.simulation.healed import Metadata
from klamm.simulation.invariants import RequestEpochs, without_controller_epoch
from klamm.simulation.process import RequestFaults
from klamm.wire.apis import ApiKey
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import RequestHeader


class Role(NamedTuple):
    """The last role that a controller gave to a replica."""

    state: LeaderAndIsr
    zk_version: int
    replicas: tuple[BrokerId, ...]


class SimulatedBroker:
    def __init__(self, broker: BrokerId, rng: random.Random, checker: Checker, faults: RequestFaults) -> None:
        self.id = broker
        self._random = rng
        self._checker = checker
        self._faults = faults
        self.epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
        self.controller_epoch: ControllerEpoch = INITIAL_CONTROLLER_EPOCH
        self.roles: dict[TopicPartition, Role] = {}
        self.offline: set[TopicPartition] = set()
        """Replicas on a failed log directory."""
        self._alive: frozenset[BrokerId] = frozenset()
        self._metadata: dict[TopicPartition, tuple[LeaderAndIsr, int, tuple[BrokerId, ...]]] = {}

    @property
    def metadata(self) -> Metadata:
        return Metadata(self._alive, self._metadata)

    def follows(self, leader: BrokerId, name: TopicPartition, epoch: LeaderEpoch) -> bool:
        role = self.roles.get(name)
        return (
            role is not None
            and (role.state.leader, role.state.leader_epoch) == (leader, epoch)
            and name not in self.offline
        )

    def led(self) -> list[TopicPartition]:
        return sorted(n for n, r in self.roles.items() if r.state.leader == self.id and n not in self.offline)

    def leads(self) -> dict[TopicPartition, LeaderEpoch]:
        return {name: self.roles[name].state.leader_epoch for name in self.led()}

    async def handle(self, context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        if header.api_key not in _OBEYED:
            raise ProtocolError(f"{header.api_key.name} is not simulated")
        request = decode_request(header.api_key, header.api_version, body)
        if self._random.random() < self._faults.lose_request:
            raise CloseConnection("the request got lost")
        if self._faults.seconds_late:
            await asyncio.sleep(self._random.uniform(0, self._faults.seconds_late))
        try:
            response = self._obey(header.api_key, request)
        except Exception as error:
            self._checker.fail(error)  # the listener only logs it
            raise
        if self._random.random() < self._faults.lose_reply:
            raise CloseConnection("the answer got lost")
        return [encode_response(response, header.api_version)]

    # --- control requests ---

    def _obey(self, api_key: ApiKey, request: Any) -> Any:
        error = self._fence(api_key, request)
        response = _OBEYED[api_key](error_code=error)
        if error is ErrorCode.NONE:
            if api_key is ApiKey.UPDATE_METADATA:
                self._learn(request)
            elif api_key is ApiKey.LEADER_AND_ISR:
                entry = response_class(ApiKey.LEADER_AND_ISR).PartitionError
                codes = [self._follow_order(topic, state) for topic, state in iter_partition_states(request)]
                response.partition_errors = [_answer(entry, name, code) for name, code in codes]
            else:
                entry = response_class(ApiKey.STOP_REPLICA).PartitionError
                stops = [(name, self._stop(name, e, d)) for name, e, d in iter_stopped_replicas(request)]
                response.partition_errors = [_answer(entry, name, code) for name, code in stops]
        return response

    def _fence(self, api_key: ApiKey, request: Any) -> ErrorCode:
        asked = RequestEpochs(BrokerEpoch(request.broker_epoch), ControllerEpoch(request.controller_epoch))
        known = RequestEpochs(self.epoch, self.controller_epoch)
        if asked.broker_epoch != UNKNOWN_BROKER_EPOCH and asked.broker_epoch < known.broker_epoch:
            self._checker.reached("stale broker epoch refused")
            return ErrorCode.STALE_BROKER_EPOCH
        if asked.controller_epoch < known.controller_epoch:
            self._checker.reached("stale controller epoch refused")
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = asked.controller_epoch
        self._checker.on_obeyed(self.id, api_key, asked, known)
        return ErrorCode.NONE

    def _learn(self, request: Any) -> None:
        self._alive = frozenset(BrokerId(broker.id) for broker in request.live_brokers)
        for topic, entry in iter_partition_states(request):
            name = TopicPartition(topic, entry.partition_index)
            if entry.leader == LEADER_DURING_DELETE:
                self._metadata.pop(name, None)
            else:
                self._metadata[name] = (
                    without_controller_epoch(_state_of(entry)),
                    entry.zk_version,
                    tuple(entry.replicas),
                )

    def _follow_order(self, topic: str, entry: Any) -> tuple[TopicPartition, ErrorCode]:
        name, state = TopicPartition(topic, entry.partition_index), _state_of(entry)
        if name in self.offline:
            return name, ErrorCode.KAFKA_STORAGE_ERROR
        known = self.roles.get(name)
        if known is not None and state.leader_epoch <= known.state.leader_epoch:
            return name, ErrorCode.STALE_CONTROLLER_EPOCH
        if state.leader != self.id and state.leader not in self._alive:
            return name, ErrorCode.NONE  # no leader to follow; the role stays as it was
        self._checker.on_order(
            self.id, name, (state, entry.zk_version), None if known is None else known.state.leader_epoch
        )
        self.roles[name] = Role(state, entry.zk_version, tuple(entry.replicas))
        return name, ErrorCode.NONE

    def _stop(self, name: TopicPartition, epoch: int, delete: bool) -> ErrorCode:
        if name in self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.roles.get(name)
        if known is not None and epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and epoch < known.state.leader_epoch:
            self._checker.reached("stale stop refused")
            return ErrorCode.FENCED_LEADER_EPOCH
        known_epoch = None if known is None else known.state.leader_epoch
        self._checker.on_stop(self.id, name, epoch, known_epoch, delete=delete)
        if delete:
            self.roles.pop(name, None)
        return ErrorCode.NONE


def _state_of(entry: Any) -> LeaderAndIsr:
    return LeaderAndIsr(
        BrokerId(entry.leader),
        LeaderEpoch(entry.leader_epoch),
        tuple(entry.isr),
        ControllerEpoch(entry.controller_epoch),
    )


def _answer(entry: Any, name: TopicPartition, code: ErrorCode) -> Any:
    return entry(topic_name=name.topic, partition_index=name.partition, error_code=code)


_OBEYED: dict[ApiKey, Any] = {
    ApiKey.LEADER_AND_ISR: response_class(ApiKey.LEADER_AND_ISR),
    ApiKey.STOP_REPLICA: response_class(ApiKey.STOP_REPLICA),
    ApiKey.UPDATE_METADATA: response_class(ApiKey.UPDATE_METADATA),
}
