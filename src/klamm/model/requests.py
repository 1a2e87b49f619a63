"""Who asks: the context that every handler gets with a request and hands to `authorize` and `throttle`."""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


class RequestContext(NamedTuple):
    principal: Principal
    listener: str
    """Name of the listener that the connection came in on: Metadata answers with endpoints of the same name, and
    control requests are refused on any but the inter-broker (or control-plane) listener."""
    client_id: str | None
    peer: str
    """Address of the other side, for logs and host rules."""
    privileged: bool
    """The listener is the one that brokers use among themselves."""
