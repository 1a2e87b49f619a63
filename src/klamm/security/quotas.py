"""How much of the broker a client may take. Unlimited until quotas are configured."""

from __future__ import annotations

from typing import Protocol

from klamm.model.requests import RequestContext


class Quotas(Protocol):
    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        """Record the use; milliseconds for which this client is to be muted after the answer."""


class Unlimited:
    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        return 0


class Muting:
    """Quotas that also tell the connection: it is not read for as long as the answer says (KIP-219)."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        throttle_ms = self._quotas.throttle(context, api, size_bytes)
        if context.connection is not None:
            context.connection.throttle_ms = max(context.connection.throttle_ms, throttle_ms)
        return throttle_ms
