"""TxnOffsetCommit (28): offsets that count once the producer's transaction commits."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.coordinators.groups.commits import Committer
from klamm.broker.coordinators.groups.group_log import Producer
from klamm.broker.handlers.offset_commit import answer, wanted_offsets
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import ProducerId, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.TXN_OFFSET_COMMIT)
VERSION_KNOWS_LOADING: Final = 2


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    refused = None
    if not services.may_transactional_id(context, Operation.WRITE, request.transactional_id):
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not services.may_group(context, Operation.READ, request.group_id):
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if refused is not None:
        names = [
            TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
        ]
        return await answer(_RESPONSE, request, dict.fromkeys(names, refused))
    offsets, errors = await wanted_offsets(services, context, request)
    if offsets:
        committer = Committer(request.member_id, request.generation_id, request.group_instance_id)
        producer = Producer(ProducerId(request.producer_id), request.producer_epoch)
        try:
            errors |= await services.groups.commits.commit_transactional(request.group_id, committer, producer, offsets)
        except KafkaError as error:
            code = error.code
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < VERSION_KNOWS_LOADING:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # old clients do not retry the other one
            errors |= dict.fromkeys(offsets, code)
    return await answer(_RESPONSE, request, errors)
