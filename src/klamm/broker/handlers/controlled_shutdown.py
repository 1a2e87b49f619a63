"""ControlledShutdown (7): a broker asks the controller to move its leaderships away before it stops."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, BrokerId
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.CONTROLLED_SHUTDOWN)
VERSION_BROKER_EPOCH: Final = 2


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    epoch = BrokerEpoch(request.broker_epoch) if version >= VERSION_BROKER_EPOCH else UNKNOWN_BROKER_EPOCH
    try:
        remaining = await services.controller.controlled_shutdown(BrokerId(request.broker_id), epoch)
    except KafkaError as error:
        return _RESPONSE(error_code=error.code, remaining_partitions=[])
    partitions = [
        _RESPONSE.RemainingPartition(topic_name=partition.topic, partition_index=partition.partition)
        for partition in remaining
    ]
    return _RESPONSE(error_code=ErrorCode.NONE, remaining_partitions=partitions)
