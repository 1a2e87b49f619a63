"""LeaderAndIsr (4): which partitions to lead and to follow. The replica manager judges the orders and obeys."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import in_slices
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control.decoders import decode_leader_and_isr
from klamm.wire.control.responses import encode_answer


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    request = await in_slices(decode_leader_and_isr(version, body))
    answer = await services.replicas.leader_and_isr(request.sender, request.partitions)
    return [await in_slices(encode_answer(ApiKey.LEADER_AND_ISR, version, answer))]
