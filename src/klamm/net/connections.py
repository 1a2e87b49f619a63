"""How many connections a broker accepts on all of its listeners: Kafka's ConnectionQuotas.

- An address may have `max.connections.per.ip` connections, or the number in an override. Further ones are accepted and
  closed at once.
- All listeners together may have `max.connections`. A further connection waits, connected but not read, until another
  one ends, as it would in the backlog of an acceptor that has stopped accepting. The inter-broker listener is exempt if
  clients do not share it: its connections replace those connections on other listeners that have been idle the longest
  (KIP-402).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from klamm.model.settings import INT_MAX


class Admission(Enum):
    ADMITTED = "admitted"
    WAITS = "waits"
    REFUSED = "refused"


class LimitedConnection(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def is_protected(self) -> bool:
        """The connection is on the brokers' own listener."""

    @property
    def last_active(self) -> float: ...

    def admit(self) -> None:
        """There is room now: begin to read."""

    def close(self, reason: str) -> None: ...


class ConnectionLimits:
    """Shared by all listeners of a broker. Closing a connection leads to `left`, at once or later."""

    def __init__(
        self,
        total: int = INT_MAX,
        per_ip: int = INT_MAX,
        overrides: Mapping[str, int] | None = None,
        *,
        waiting: int = 512,
    ) -> None:
        self._total = total
        self._per_ip = per_ip
        self._overrides = dict(overrides or {})
        self._waiting_max = waiting
        self._admitted: dict[LimitedConnection, None] = {}
        self._waiting: deque[LimitedConnection] = deque()
        self._by_host: Counter[str] = Counter()

    def change(self, total: int, per_ip: int, overrides: Mapping[str, int]) -> None:
        """New limits for new connections; those that exist stay, and waiting ones enter if there is room now."""
        self._total = total
        self._per_ip = per_ip
        self._overrides = dict(overrides)
        self._admit_waiting()

    def allowed_from(self, host: str) -> int:
        return self._overrides.get(host, self._per_ip)

    def entered(self, connection: LimitedConnection) -> Admission:
        if self._by_host[connection.host] >= self.allowed_from(connection.host):
            return Admission.REFUSED
        if len(self._admitted) < self._total:
            admission = Admission.ADMITTED
        elif connection.is_protected:
            self._make_room()
            admission = Admission.ADMITTED
        elif len(self._waiting) < self._waiting_max:
            admission = Admission.WAITS
        else:
            return Admission.REFUSED
        self._by_host[connection.host] += 1
        if admission is Admission.ADMITTED:
            self._admitted[connection] = None
        else:
            self._waiting.append(connection)
        return admission

    def left(self, connection: LimitedConnection) -> None:
        """Call it for every connection that `entered` did not refuse."""
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        if connection in self._admitted:
            del self._admitted[connection]
        elif connection in self._waiting:
            self._waiting.remove(connection)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and len(self._admitted) < self._total:
            next_one = self._waiting.popleft()
            self._admitted[next_one] = None
            next_one.admit()

    def _make_room(self) -> None:
        candidates = [connection for connection in self._admitted if not connection.is_protected]
        if candidates:
            quietest = min(candidates, key=lambda connection: connection.last_active)
            del self._admitted[quietest]  # closing takes a moment, and it must not be chosen again
            quietest.close("max.connections is reached and another broker needs a connection")
