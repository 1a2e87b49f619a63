"""LeaderAndIsr (4): the controller says who leads and who follows. Judged and obeyed by the replica manager."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.broker.partition import PartitionOrder
from klamm.broker.replica_manager import Sender
from klamm.model.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control import iter_partition_states
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.LEADER_AND_ISR)
_ERROR: Final = _RESPONSE.PartitionError


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    orders = [_order(topic, entry) for topic, entry in iter_partition_states(request)]
    answer = await services.replicas.leader_and_isr(sender_of(request), orders)
    errors = [
        _ERROR(topic_name=name.topic, partition_index=name.partition, error_code=code)
        for name, code in answer.partitions.items()
    ]
    return _RESPONSE(error_code=answer.error, partition_errors=errors)


def sender_of(request: Any) -> Sender:
    """Head of the three control requests; the oldest versions carry no broker epoch."""
    epoch = getattr(request, "broker_epoch", None)
    return Sender(
        BrokerId(request.controller_id),
        ControllerEpoch(request.controller_epoch),
        UNKNOWN_BROKER_EPOCH if epoch is None else BrokerEpoch(epoch),
    )


def _order(topic: str, entry: Any) -> PartitionOrder:
    state = LeaderAndIsr(
        BrokerId(entry.leader),
        LeaderEpoch(entry.leader_epoch),
        tuple(entry.isr),
        ControllerEpoch(entry.controller_epoch),
    )
    adding, removing = getattr(entry, "adding_replicas", None), getattr(entry, "removing_replicas", None)
    assignment = Assignment(tuple(entry.replicas), tuple(adding or ()), tuple(removing or ()))
    return PartitionOrder(
        TopicPartition(topic, entry.partition_index), state, entry.zk_version, assignment, bool(entry.is_new)
    )
