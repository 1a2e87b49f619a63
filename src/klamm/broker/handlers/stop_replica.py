"""StopReplica (5): stop following, and with the delete flag forget the partition and remove its log.

Versions 0-2 have one flag for all and no leader epoch; version 3 has both per partition (KIP-570).
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.control_requests import sender_of
from klamm.broker.handlers.services import Services
from klamm.broker.replica_manager import StopOrder
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control import iter_stopped_replicas
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.STOP_REPLICA)
_ERROR: Final = _RESPONSE.PartitionError


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    orders = [StopOrder(name, epoch, delete) for name, epoch, delete in iter_stopped_replicas(request)]
    answer = await services.replicas.stop_replica(sender_of(request), orders)
    errors = [
        _ERROR(topic_name=name.topic, partition_index=name.partition, error_code=code)
        for name, code in answer.partitions.items()
    ]
    return _RESPONSE(error_code=answer.error, partition_errors=errors)
