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
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from klamm.broker.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl,
    stop_replica,
    sync_group,
    txn_offset_commit,
    update_metadata,
    write_txn_markers,
)
from klamm.broker.handlers.freeing import freed, is_wide
from klamm.broker.handlers.metered import Metered
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import Pool, at_once, in_slices
from klamm.broker.timed import Timed
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

LARGE_BYTES: Final = 32 << 10
"""The codec needs up to ten milliseconds for a request of this size and its response, which may be larger."""

ENTRIES_MAX: Final = 500_000
"""In the lists of a client's request. No honest one has as many, but 16 MB have room for millions, and whatever a
handler collects of them is freed in one step."""

WIDE_ENTRIES: Final = 1_000
"""A small request may have a wide response, such as a list of all groups. To encode so many takes milliseconds."""

log = logging.getLogger(__name__)

T = TypeVar("T")


MessageHandler = Callable[[Services, RequestContext, int, Any], Coroutine[Any, Any, Any]]
DataHandler = Callable[[Services, RequestContext, int, memoryview], Coroutine[Any, Any, Metered]]
ControlHandler = Callable[[Services, RequestContext, int, memoryview], Coroutine[Any, Any, Sequence[Buffer]]]

MESSAGE_HANDLERS: Final[dict[ApiKey, MessageHandler]] = {
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.CONTROLLED_SHUTDOWN: controlled_shutdown.handle,
    ApiKey.OFFSET_COMMIT: offset_commit.handle,
    ApiKey.OFFSET_FETCH: offset_fetch.handle,
    ApiKey.FIND_COORDINATOR: find_coordinator.handle,
    ApiKey.JOIN_GROUP: join_group.handle,
    ApiKey.HEARTBEAT: heartbeat.handle,
    ApiKey.LEAVE_GROUP: leave_group.handle,
    ApiKey.SYNC_GROUP: sync_group.handle,
    ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
    ApiKey.LIST_GROUPS: list_groups.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.SASL_HANDSHAKE: sasl.handshake,
    ApiKey.SASL_AUTHENTICATE: sasl.authenticate,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.DELETE_RECORDS: delete_records.handle,
    ApiKey.DESCRIBE_ACLS: acls.describe,
    ApiKey.CREATE_ACLS: acls.create,
    ApiKey.DELETE_ACLS: acls.delete,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn.handle,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.handle,
    ApiKey.END_TXN: end_txn.handle,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers.handle,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
    ApiKey.ALTER_CONFIGS: alter_configs.handle,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit.handle,
    ApiKey.DELETE_GROUPS: delete_groups.handle,
    ApiKey.OFFSET_DELETE: offset_delete.handle,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs.handle,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
    ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    ApiKey.ELECT_LEADERS: elect_leaders.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments.handle,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments.handle,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas.handle,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions.handle,
    ApiKey.LIST_TRANSACTIONS: list_transactions.handle,
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

WITHOUT_THROTTLE_TIME: Final = CONTROL_APIS | {
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}
"""Brokers are never throttled, and the responses about SASL have no field for it."""


def _decode_large(key: ApiKey, version: int, body: memoryview) -> tuple[Any, bool]:
    """The request, and whether it has too many entries."""
    request = decode_request(key, version, body)
    return request, is_wide(request, ENTRIES_MAX)


def served() -> list[Api]:
    """What this broker advertises, in order of keys: exactly what has a handler."""
    keys = {ApiKey.API_VERSIONS, *MESSAGE_HANDLERS, *DATA_HANDLERS, *CONTROL_HANDLERS}
    return [APIS[key] for key in sorted(keys)]


class Dispatcher:
    """The handler for every listener."""

    def __init__(self, services: Services, quotas: Quotas, pool: Pool = at_once) -> None:
        """`pool` runs the codec of large messages: they take up to a second, which must not hold the loop."""
        self._services = services
        self._pool = pool
        self._quotas = quotas
        self._served = {api.key: api for api in served()}
        self.requests: dict[ApiKey, int] = {}

    async def __call__(
        self, context: RequestContext, header: RequestHeader, body: memoryview
    ) -> Sequence[Buffer] | None:
        if context.connection is None:
            return await self._answer(context, header, body)
        timed = Timed(self._answer(context, header, body), self._services.replicas.clock)
        try:
            return await timed
        finally:
            context.connection.held_seconds = timed.seconds

    async def _answer(
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
            failed = partial(self._failed, context, key, version, body, error)
            return await self._pool(failed) if len(body) > LARGE_BYTES else failed()

    async def _handle(
        self, context: RequestContext, key: ApiKey, version: int, body: memoryview
    ) -> Sequence[Buffer] | None:
        if key in CONTROL_HANDLERS:
            return await CONTROL_HANDLERS[key](self._services, context, version, body)
        if key in DATA_HANDLERS:
            answer, seconds = await self._timed(DATA_HANDLERS[key](self._services, context, version, body))
            return await self._metered(context, key, answer, seconds)
        if len(body) > LARGE_BYTES:
            return await self._handle_large(context, key, version, body)
        request = decode_request(key, version, body)
        response, seconds = await self._timed(MESSAGE_HANDLERS[key](self._services, context, version, request))
        if isinstance(response, Metered):
            return await self._metered(context, key, response, seconds)
        if is_wide(response, WIDE_ENTRIES):
            return await self._encode_wide(context, key, version, response, seconds)
        return self._encode(context, key, version, response, seconds)

    async def _handle_large(
        self, context: RequestContext, key: ApiKey, version: int, body: memoryview
    ) -> Sequence[Buffer] | None:
        request, has_too_many = await self._pool(partial(_decode_large, key, version, body))
        try:
            if has_too_many and not context.privileged:
                raise ProtocolError(f"{key.name} with more than {ENTRIES_MAX} entries")
            response, seconds = await self._timed(MESSAGE_HANDLERS[key](self._services, context, version, request))
        finally:
            await in_slices(freed(request))
        if isinstance(response, Metered):
            return await self._metered(context, key, response, seconds)
        return await self._encode_wide(context, key, version, response, seconds)

    async def _encode_wide(
        self, context: RequestContext, key: ApiKey, version: int, response: Any, seconds: float
    ) -> Sequence[Buffer]:
        self._set_throttle(context, key, response, seconds)
        encoded = await self._pool(partial(encode_response, response, version))
        await in_slices(freed(response))
        return [encoded]

    async def _metered(
        self, context: RequestContext, key: ApiKey, answer: Metered, seconds: float
    ) -> Sequence[Buffer] | None:
        charged = answer.size_bytes
        made = answer.encode(0 if charged is None else self._throttle(context, key, charged, seconds))
        return await made if isinstance(made, Awaitable) else made

    async def _timed(self, handling: Coroutine[Any, Any, T]) -> tuple[T, float]:
        """The answer, and for how long its handler held the loop if a quota limits that."""
        if not self._quotas.counts_time:
            return await handling, 0.0
        timed = Timed(handling, self._services.replicas.clock)
        return await timed, timed.seconds

    def _encode(
        self, context: RequestContext, key: ApiKey, version: int, response: Any, seconds: float = 0.0
    ) -> Sequence[Buffer]:
        self._set_throttle(context, key, response, seconds)
        return [encode_response(response, version)]

    def _set_throttle(self, context: RequestContext, key: ApiKey, response: Any, seconds: float) -> None:
        if key not in WITHOUT_THROTTLE_TIME:
            response.throttle_time_ms = self._throttle(context, key, 0, seconds)

    def _throttle(self, context: RequestContext, key: ApiKey, size_bytes: int, seconds: float) -> int:
        """Charge the client. The broker does not read from its connection for as long as the answer says (KIP-219).
        Brokers are not charged on a listener of their own."""
        if context.privileged and not self._services.config.shares_listener_with_clients:
            return 0
        throttle_ms = self._quotas.throttle(context, APIS[key].name, size_bytes, seconds)
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
