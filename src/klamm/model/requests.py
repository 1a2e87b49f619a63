"""The context of a request: handlers pass it to `authorize`, the dispatcher passes it to `throttle`."""

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
    """What handlers know of a request's connection: whether the client still waits for the answer, and for how long the
    broker stops reading from it afterwards (quotas)."""

    __slots__ = ("_on_answered", "_on_gone", "held_seconds", "is_gone", "throttle_ms")

    def __init__(self) -> None:
        self.throttle_ms = 0
        self.held_seconds = 0.0
        """For how long the current request held the loop."""
        self.is_gone = False
        self._on_answered: list[Callable[[], None]] = []
        self._on_gone: dict[Callable[[], None], None] = {}

    def when_gone(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call `call` once when the client disconnects, or now if it already has. Returns a function to cancel it."""
        if self.is_gone:
            call()
        else:
            self._on_gone[call] = None
        return lambda: self._on_gone.pop(call, None)

    def when_answered(self, call: Callable[[], None]) -> None:
        """Call `call` once when the answer of the current request is sent, or will never be."""
        self._on_answered.append(call)

    def answered(self) -> None:
        while self._on_answered:
            self._on_answered.pop()()

    def gone(self) -> None:
        self.is_gone = True
        while self._on_gone:
            self._on_gone.popitem()[0]()


class RequestContext(NamedTuple):
    principal: Principal
    listener: str
    """The name of the listener that accepted the connection. Metadata answers with endpoints of the same name, and only
    the inter-broker (or control-plane) listener accepts control requests."""
    client_id: str | None
    peer: str
    """The client's address, for logs and host rules."""
    privileged: bool
    """Whether the listener is the one that brokers use among themselves."""
    connection: ClientConnection | None = None
    """None for requests without a connection, such as those of tests."""
