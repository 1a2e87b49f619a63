"""LeaderAndIsr (4): the controller says who leads and who follows. Judged and obeyed by the replica manager."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

from klamm.broker.handlers.control_requests import (
    LEADER_AND_ISR_FLEXIBLE,
    PARTITIONS_PER_SLICE,
    decode_leader_and_isr,
)
from klamm.broker.handlers.services import Services
from klamm.broker.replica_manager import Answer
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import encode_response, response_class
from klamm.wire.varint import uvarint

_RESPONSE: Final = response_class(ApiKey.LEADER_AND_ISR)
_ERROR: Final = _RESPONSE.PartitionError
_CODE = struct.Struct(">h")
_ENTRY = struct.Struct(">ihB")


async def handle(services: Services, context: RequestContext, version: int, body: memoryview) -> Sequence[Buffer]:
    request = await decode_leader_and_isr(version, body)
    answer = await services.replicas.leader_and_isr(request.sender, request.partitions)
    if version < LEADER_AND_ISR_FLEXIBLE:
        errors = [
            _ERROR(topic_name=name.topic, partition_index=name.partition, error_code=code)
            for name, code in answer.partitions.items()
        ]
        return [encode_response(_RESPONSE(error_code=answer.error, partition_errors=errors), version)]
    return await _encode(answer)


async def _encode(answer: Answer) -> list[Buffer]:
    """By hand and in slices: the answer has as many entries as the request."""
    chunks: list[Buffer] = [_CODE.pack(answer.error) + uvarint(len(answer.partitions) + 1)]
    names: dict[str, bytes] = {}
    for count, (name, code) in enumerate(answer.partitions.items(), 1):
        topic = names.get(name.topic)
        if topic is None:
            raw = name.topic.encode()
            topic = names[name.topic] = uvarint(len(raw) + 1) + raw
        chunks.append(topic + _ENTRY.pack(name.partition, code, 0))
        if count % PARTITIONS_PER_SLICE == 0:
            await asyncio.sleep(0)
    chunks.append(b"\x00")
    return [b"".join(chunks)]
