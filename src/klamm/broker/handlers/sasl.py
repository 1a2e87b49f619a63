"""SaslHandshake (17) and SaslAuthenticate (36) on a listener without SASL: out of place, as in Kafka."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_HANDSHAKE: Final = response_class(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = response_class(ApiKey.SASL_AUTHENTICATE)


async def handshake(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    return _HANDSHAKE(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


async def authenticate(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    message = f"Listener {context.listener} has no SASL."
    return _AUTHENTICATE(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message, auth_bytes=b"")
