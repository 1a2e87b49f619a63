"""LeaderAndIsr (4): the controller says who leads and who follows. Judged and obeyed by the replica manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.control_requests import decode_leader_and_isr
from klamm.broker.handlers.services import Services
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import encode_response, response_class

_RESPONSE: Final = response_class(ApiKey.LEADER_AND_ISR)
_ERROR: Final = _RESPONSE.PartitionError


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    request = await decode_leader_and_isr(version, body)
    answer = await services.replicas.leader_and_isr(request.sender, request.partitions)
    errors = [
        _ERROR(topic_name=name.topic, partition_index=name.partition, error_code=code)
        for name, code in answer.partitions.items()
    ]
    return [encode_response(_RESPONSE(error_code=answer.error, partition_errors=errors), version)]
