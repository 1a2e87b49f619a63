"""From an API key to its handler: one table, which is also what ApiVersions advertises.

A message handler gets the decoded request and returns the response to encode; a raw handler gets the body's bytes and
returns chunks: record data is not to be copied, and the large control requests are decoded in slices. A version that is
not in the table closes the connection without an answer, as with Kafka, except for ApiVersions itself: a client that is
newer than we are must be able to ask. Control requests are obeyed only on the listener that brokers use among
themselves (design D6). A handler that fails has an answer too: the API's own, with UNKNOWN_SERVER_ERROR or the code of
what was raised, so that a client learns more than from a closed connection (reference broker 5.4).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from klamm.broker.handlers import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_log_dirs,
    elect_leaders,
    fetch,
    init_producer_id,
    leader_and_isr,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_for_leader_epoch,
    produce,
    stop_replica,
    update_metadata,
)
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError, KlammError
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import APIS, CONTROL_APIS, Api, ApiKey
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.failures import failure_body
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import RequestHeader

log = logging.getLogger(__name__)

MessageHandler = Callable[[Services, RequestContext, int, Any], Awaitable[Any]]
RawHandler = Callable[[Services, RequestContext, int, memoryview], Awaitable[Sequence[Buffer] | None]]

MESSAGE_HANDLERS: Final[dict[ApiKey, MessageHandler]] = {
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.STOP_REPLICA: stop_replica.handle,
    ApiKey.CONTROLLED_SHUTDOWN: controlled_shutdown.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.ELECT_LEADERS: elect_leaders.handle,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
}
RAW_HANDLERS: Final[dict[ApiKey, RawHandler]] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
    ApiKey.UPDATE_METADATA: update_metadata.handle,
    ApiKey.LEADER_AND_ISR: leader_and_isr.handle,
}


def served() -> list[Api]:
    """What we advertise, in order of keys: exactly what has a handler."""
    keys = {ApiKey.API_VERSIONS, *MESSAGE_HANDLERS, *RAW_HANDLERS}
    return [APIS[key] for key in sorted(keys)]


class Dispatcher:
    """`Handler` of every listener."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._served = {api.key: api for api in served()}
        self.requests: dict[ApiKey, int] = {}

    async def __call__(
        self, context: RequestContext, header: RequestHeader, body: memoryview
    ) -> Sequence[Buffer] | None:
        key, version = header.api_key, header.api_version
        self.requests[key] = self.requests.get(key, 0) + 1
        if key is ApiKey.API_VERSIONS:
            return api_versions.answer(self._services, context, version, body, list(self._served.values()))
        api = self._served.get(key)
        if api is None or not api.serves(version):
            raise ProtocolError(f"{key.name} version {version} is not served")
        if key in CONTROL_APIS and not self._may_control(context):
            return self._refuse_control(context, key, version)
        try:
            return await self._handle(context, key, version, body)
        except (ProtocolError, CloseConnection):
            raise
        except Exception as error:
            return self._failed(context, key, version, body, error)

    async def _handle(
        self, context: RequestContext, key: ApiKey, version: int, body: memoryview
    ) -> Sequence[Buffer] | None:
        raw = RAW_HANDLERS.get(key)
        if raw is not None:
            return await raw(self._services, context, version, body)
        response = await MESSAGE_HANDLERS[key](self._services, context, version, decode_request(key, version, body))
        return [encode_response(response, version)]

    def _failed(
        self, context: RequestContext, key: ApiKey, version: int, body: memoryview, error: Exception
    ) -> Sequence[Buffer]:
        """One line for what was to be expected, with the traceback for what was not: that is a defect of ours."""
        expected = isinstance(error, KlammError)
        message = "%s version %d of %s failed: %s"
        log.log(
            logging.WARNING if expected else logging.ERROR,
            message,
            key.name,
            version,
            context.peer,
            error,
            exc_info=None if expected else error,
        )
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        request = decode_request(key, version, body)
        answer = failure_body(key, version, request, code)
        if answer is None or (key is ApiKey.PRODUCE and request.acks == produce.NO_ACKS):
            raise CloseConnection(f"{key.name} failed and has no answer that could say so")
        return [answer]

    def _may_control(self, context: RequestContext) -> bool:
        """Both: an authorizer that is too generous does not open the clients' listener for control requests."""
        return context.privileged and self._services.may(context, Operation.CLUSTER_ACTION)

    def _refuse_control(self, context: RequestContext, key: ApiKey, version: int) -> Sequence[Buffer]:
        log.warning("%s from %s on listener %s refused: brokers only", key.name, context.peer, context.listener)
        refusal = response_class(key)(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return [encode_response(refusal, version)]
