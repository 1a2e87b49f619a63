"""Maps an API key to its handler, by one table, which ApiVersions also advertises.

There are three kinds of handlers. A message handler takes the decoded request and returns the response. A data handler
(Produce, Fetch) takes the body's bytes, because record data is never copied, and returns a `Metered` answer. A control
handler takes the body's bytes, which it decodes in slices, and returns those of the answer. The dispatcher charges the
client's quota, puts the throttle time into the answer and encodes it.

A version outside the table closes the connection without an answer, as Kafka does, except for ApiVersions itself: a
client that is newer than this broker must be able to ask. Control requests are obeyed only on the listener that brokers
use among themselves (design D6). If a handler fails, the client gets the API's own response with the code of the error
or UNKNOWN_SERVER_ERROR, which says more than a closed connection.
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
from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError, KlammError
from klamm.model.ports import Buffer
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.security.quotas import Quotas
from klamm.wire.apis import APIS, CONTROL_APIS, Api, ApiKey
from klamm.wire.control.responses import encode_error
from klamm.wire.errors import CloseConnection, ProtocolError
from klamm.wire.failures import failure_body
from klamm.wire.messages import decode_request, encode_response
from klamm.wire.server_connection import RequestHeader

log = logging.getLogger(__name__)

MessageHandler = Callable[[Services, RequestContext, int, Any], Awaitable[Any]]
DataHandler = Callable[[Services, RequestContext, int, memoryview], Awaitable[Metered]]
ControlHandler = Callable[[Services, RequestContext, int, memoryview], Awaitable[Sequence[Buffer]]]

MESSAGE_HANDLERS: Final[dict[ApiKey, MessageHandler]] = {
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
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
DATA_HANDLERS: Final[dict[ApiKey, DataHandler]] = {
    ApiKey.PRODUCE: produce.handle,
    ApiKey.FETCH: fetch.handle,
}
CONTROL_HANDLERS: Final[dict[ApiKey, ControlHandler]] = {
    ApiKey.LEADER_AND_ISR: leader_and_isr.handle,
    ApiKey.STOP_REPLICA: stop_replica.handle,
    ApiKey.UPDATE_METADATA: update_metadata.handle,
}


def served() -> list[Api]:
    """What this broker advertises, in order of keys: exactly what has a handler."""
    keys = {ApiKey.API_VERSIONS, *MESSAGE_HANDLERS, *DATA_HANDLERS, *CONTROL_HANDLERS}
    return [APIS[key] for key in sorted(keys)]


class Dispatcher:
    """The handler for every listener."""

    def __init__(self, services: Services, quotas: Quotas) -> None:
        self._services = services
        self._quotas = quotas
        self._served = {api.key: api for api in served()}
        self.requests: dict[ApiKey, int] = {}

    async def __call__(
        self, context: RequestContext, header: RequestHeader, body: memoryview
    ) -> Sequence[Buffer] | None:
        key, version = header.api_key, header.api_version
        self.requests[key] = self.requests.get(key, 0) + 1
        if key is ApiKey.API_VERSIONS:
            answered_version, response = api_versions.answer(version, body, list(self._served.values()))
            return self._encode(context, key, answered_version, response)
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
        if key in CONTROL_HANDLERS:
            return await CONTROL_HANDLERS[key](self._services, context, version, body)
        if key in DATA_HANDLERS:
            answer = await DATA_HANDLERS[key](self._services, context, version, body)
            charged = answer.size_bytes
            return answer.encode(0 if charged is None else self._throttle(context, key, charged))
        request = decode_request(key, version, body)
        response = await MESSAGE_HANDLERS[key](self._services, context, version, request)
        return self._encode(context, key, version, response)

    def _encode(self, context: RequestContext, key: ApiKey, version: int, response: Any) -> Sequence[Buffer]:
        if key not in CONTROL_APIS:  # their responses have no throttle time
            response.throttle_time_ms = self._throttle(context, key, 0)
        return [encode_response(response, version)]

    def _throttle(self, context: RequestContext, key: ApiKey, size_bytes: int) -> int:
        """Charge the client. The broker does not read from its connection for as long as the answer says (KIP-219)."""
        throttle_ms = self._quotas.throttle(context, APIS[key].name, size_bytes)
        if context.connection is not None:
            context.connection.throttle_ms = throttle_ms
        return throttle_ms

    def _failed(
        self, context: RequestContext, key: ApiKey, version: int, body: memoryview, error: Exception
    ) -> Sequence[Buffer]:
        """Logs one line for an expected error. Anything else is a defect of ours and is logged with its traceback."""
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
            raise CloseConnection(f"{key.name} failed, and its response has no place for an error")
        return [answer]

    def _may_control(self, context: RequestContext) -> bool:
        """Listener and authorizer must both allow it: a permissive authorizer does not open the clients' listener."""
        return context.privileged and self._services.may(context, Operation.CLUSTER_ACTION)

    def _refuse_control(self, context: RequestContext, key: ApiKey, version: int) -> Sequence[Buffer]:
        log.warning("refused %s from %s on listener %s: brokers only", key.name, context.peer, context.listener)
        return [encode_error(key, version, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
