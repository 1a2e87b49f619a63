"""How much of the broker a client may use. Unlimited until quotas are configured."""

from __future__ import annotations

from typing import Protocol

from klamm.model.requests import RequestContext


class Quotas(Protocol):
    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        """Record the usage, and return for how many milliseconds to mute the client after the answer."""


class Unlimited:
    def throttle(self, context: RequestContext, api: str, size_bytes: int) -> int:
        return 0
