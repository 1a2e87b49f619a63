"""EndTxn (26): a producer commits or aborts its transaction. The answer says that this is decided and will happen."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.END_TXN)


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    error = ErrorCode.NONE
    try:
        if not services.may_transactional_id(context, Operation.WRITE, request.transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        await services.transactions.end(
            request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed
        )
    except KafkaError as refusal:
        error = refusal.code
    return _RESPONSE(error_code=error)
