"""Who asks: the context that every handler gets with a request and hands to `authorize` and `throttle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple


class Principal(NamedTuple):
    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


class ClientConnection:
    """What handlers have to do with the connection that a request came by: whether somebody still waits for the answer,
    and for how long it is not read after it (quotas)."""

    __slots__ = ("_on_gone", "is_gone", "throttle_ms")

    def __init__(self) -> None:
        self.throttle_ms = 0
        self.is_gone = False
        self._on_gone: dict[Callable[[], None], None] = {}

    def when_gone(self, call: Callable[[], None]) -> Callable[[], None]:
        """`call` once when the client has gone, at once if it has; returns what takes that back."""
        if self.is_gone:
            call()
        else:
            self._on_gone[call] = None
        return lambda: self._on_gone.pop(call, None)

    def gone(self) -> None:
        self.is_gone = True
        while self._on_gone:
            self._on_gone.popitem()[0]()


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
    connection: ClientConnection | None = None
    """None for requests that came by no connection, such as those of tests."""
