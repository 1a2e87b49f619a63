"""A simulated broker: it obeys control requests as a real one does, fences included, but keeps no records.

As leader it puts returning replicas back into the ISR after a while, by the same conditional write that a real leader
makes: so versions move under the controller's feet, as in life.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from klamm.model.errors import BadVersion, ErrorCode, NoNode, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Buffer, ZooKeeper
from klamm.model.requests import RequestContext
from klamm.simulation.checker import Checker
from klamm.wire import control
from klamm.wire.apis import ApiKey
from klamm.wire.connection import RequestHeader
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import decode_request, encode_response
from klamm.zookeeper.znodes import partition_state

REJOIN_AFTER = (0.5, 4.0)
"""Seconds until a leader takes missing replicas back into the ISR: catching up takes a while."""


class SimulatedBroker:
    def __init__(self, broker: BrokerId, zk: ZooKeeper, rng: random.Random, checker: Checker) -> None:
        self.id = broker
        self._zk = zk
        self._random = rng
        self._checker = checker
        self.epoch = BrokerEpoch(-1)
        self._controller_epoch = ControllerEpoch(0)
        self._partitions: dict[TopicPartition, tuple[LeaderAndIsr, int, tuple[BrokerId, ...]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer]:
        if header.api_key not in _RESPONSES:
            raise ProtocolError(f"{header.api_key.name} is not simulated")
        request = decode_request(header.api_key, header.api_version, body)
        error = self._fence(request)
        response = _RESPONSES[header.api_key](error_code=error)
        if error is ErrorCode.NONE and header.api_key is ApiKey.LEADER_AND_ISR:
            answers = [self._obey(topic, state) for topic, state in control.iter_partition_states(request)]
            response.partition_errors = [
                control.LeaderAndIsrResponse.PartitionError(
                    topic_name=name.topic, partition_index=name.partition, error_code=code
                )
                for name, code in answers
            ]
        elif error is ErrorCode.NONE and header.api_key is ApiKey.STOP_REPLICA:
            response.partition_errors = [
                control.StopReplicaResponse.PartitionError(
                    topic_name=name.topic, partition_index=name.partition, error_code=self._stop(name, delete)
                )
                for name, _, delete in control.iter_stopped_replicas(request)
            ]
        return [encode_response(response, header.api_version)]

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _fence(self, request: object) -> ErrorCode:
        epoch = BrokerEpoch(request.broker_epoch)  # type: ignore[attr-defined]
        controller_epoch = ControllerEpoch(request.controller_epoch)  # type: ignore[attr-defined]
        if epoch < self.epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self._controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self._controller_epoch = controller_epoch
        self._checker.on_request_accepted(self.id, controller_epoch)
        return ErrorCode.NONE

    def _obey(self, topic: str, entry: object) -> tuple[TopicPartition, ErrorCode]:
        name = TopicPartition(topic, entry.partition_index)  # type: ignore[attr-defined]
        state = LeaderAndIsr(
            BrokerId(entry.leader),  # type: ignore[attr-defined]
            LeaderEpoch(entry.leader_epoch),  # type: ignore[attr-defined]
            tuple(entry.isr),  # type: ignore[attr-defined]
            ControllerEpoch(entry.controller_epoch),  # type: ignore[attr-defined]
        )
        known = self._partitions.get(name)
        if known is not None and state.leader_epoch <= known[0].leader_epoch:
            return name, ErrorCode.STALE_CONTROLLER_EPOCH
        replicas = tuple(entry.replicas)  # type: ignore[attr-defined]
        self._partitions[name] = (state, entry.zk_version, replicas)  # type: ignore[attr-defined]
        if state.leader == self.id:
            self._checker.on_leader(name, state.leader_epoch, self.id)
            self._spawn(self._take_back(name, state.leader_epoch))
        return name, ErrorCode.NONE

    def _stop(self, name: TopicPartition, delete: bool) -> ErrorCode:
        if delete:
            self._partitions.pop(name, None)
        return ErrorCode.NONE

    def _spawn(self, work: object) -> None:
        task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_back(self, name: TopicPartition, epoch: LeaderEpoch) -> None:
        """Complete the ISR with replicas whose brokers are alive, unless a newer leadership has come meanwhile."""
        while True:
            await asyncio.sleep(self._random.uniform(*REJOIN_AFTER))
            entry = self._partitions.get(name)
            if entry is None or entry[0].leader_epoch != epoch or entry[0].leader != self.id:
                return
            state, version, replicas = entry
            try:
                alive = {int(child) for child in await self._zk.children("/brokers/ids")}
                isr = (*state.isr, *(b for b in replicas if b not in state.isr and b in alive))
                if isr == state.isr:
                    continue
                wider = state._replace(isr=isr)
                stat = await self._zk.set(partition_state.path(name), partition_state.encode(wider), version)
            except (BadVersion, NoNode):
                return  # the controller has decided: its LeaderAndIsr is on the way
            except ZooKeeperError:
                continue
            if self._partitions.get(name) == entry:
                self._partitions[name] = (wider, stat.version, replicas)


_RESPONSES = {
    ApiKey.LEADER_AND_ISR: control.LeaderAndIsrResponse,
    ApiKey.STOP_REPLICA: control.StopReplicaResponse,
    ApiKey.UPDATE_METADATA: control.UpdateMetadataResponse,
}
