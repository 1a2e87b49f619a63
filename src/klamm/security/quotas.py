"""How much of the broker a client may use: bytes per second produced and fetched, and a share of the loop's time.

A limit belongs to a user, a client id or both, or is a default for them. The most specific one applies (`PRECEDENCE`).
A client above its limit is told how long it shall wait, and is not read for as long (KIP-13, KIP-124, KIP-219).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from klamm.model.ports import Clock
from klamm.model.requests import RequestContext
from klamm.model.settings import INT_MAX
from klamm.security.windowed_rate import WindowedRate

PRODUCE_RATE: Final = "producer_byte_rate"
FETCH_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
KEYS: Final = (PRODUCE_RATE, FETCH_RATE, REQUEST_PERCENTAGE)
_BYTES: Final = {"Produce": PRODUCE_RATE, "Fetch": FETCH_RATE}
CLIENTS_MAX: Final = 10_000
"""The usage of so many clients is remembered; the one that was idle for the longest time is forgotten first."""


class Default:
    """Stands for every user or every client id that has no limit of its own."""

    def __repr__(self) -> str:
        return "<default>"


DEFAULT: Final = Default()
Name = str | Default | None
"""None means that the limit does not depend on it."""


class Entity(NamedTuple):
    user: Name
    client: Name


Limits = Mapping[str, float]


class Quotas(Protocol):
    def throttle(self, context: RequestContext, api: str, size_bytes: int, seconds: float = 0.0) -> int:
        """Record the usage, and return for how many milliseconds to mute the client after the answer. A fetch that is
        throttled is answered without data, and its bytes do not count."""

    def fetch_bytes_max(self, context: RequestContext) -> int:
        """The largest answer that the quota can allow: a larger one would be throttled for ever (KAFKA-9677)."""

    @property
    def counts_time(self) -> bool:
        """Whether `seconds` matter: measuring them costs a little for each request."""


def precedence(user: str, client: str) -> Iterable[Entity]:
    """The entities whose limit may apply to this client, the most specific one first."""
    for who in (user, DEFAULT):
        yield Entity(who, client)
        yield Entity(who, DEFAULT)
        yield Entity(who, None)
    yield Entity(None, client)
    yield Entity(None, DEFAULT)


class ClientQuotas:
    def __init__(self, clock: Clock, *, windows: int = 11, window_seconds: int = 1) -> None:
        self._clock = clock
        self._windows = windows
        self._window_seconds = window_seconds
        self._limits: dict[Entity, Limits] = {}
        self._usage: OrderedDict[tuple[str, str | None, str | None], WindowedRate] = OrderedDict()
        self.throttled = 0
        """Answers with a throttle time, for the metrics."""

    @property
    def counts_time(self) -> bool:
        return any(REQUEST_PERCENTAGE in limits for limits in self._limits.values())

    @property
    def limits(self) -> Mapping[Entity, Limits]:
        return self._limits

    def set_limits(self, entity: Entity, limits: Limits) -> None:
        if limits:
            self._limits[entity] = dict(limits)
        else:
            self._limits.pop(entity, None)

    def replace_limits(self, limits: Mapping[Entity, Limits]) -> None:
        self._limits = {entity: dict(found) for entity, found in limits.items() if found}

    def throttle(self, context: RequestContext, api: str, size_bytes: int, seconds: float = 0.0) -> int:
        if not self._limits:
            return 0
        by_time = self._charge(context, REQUEST_PERCENTAGE, seconds * 100)
        by_time = min(by_time, self._window_seconds * 1000)  # one window at most, as in Kafka
        key = _BYTES.get(api)
        by_bytes = self._charge(context, key, size_bytes) if key is not None else 0
        throttle_ms = max(by_time, by_bytes)
        if throttle_ms:
            self.throttled += 1
            if key == FETCH_RATE:
                self._charge(context, key, -size_bytes)
        return throttle_ms

    def fetch_bytes_max(self, context: RequestContext) -> int:
        found = self._limit(context, FETCH_RATE)
        if found is None:
            return INT_MAX
        return min(INT_MAX, max(1, int(found[1] * (self._windows - 1) * self._window_seconds)))

    def _charge(self, context: RequestContext, key: str, amount: float) -> int:
        found = self._limit(context, key)
        if found is None or not amount:
            return 0
        entity, limit = found
        usage = self._usage_of(context, key, entity)
        usage.record(amount)
        rate = usage.rate()
        return int((rate - limit) / limit * usage.measured_seconds() * 1000) if rate > limit else 0

    def _limit(self, context: RequestContext, key: str) -> tuple[Entity, float] | None:
        if not self._limits:
            return None
        for entity in precedence(context.principal.name, context.client_id or ""):
            limits = self._limits.get(entity)
            if limits is not None and key in limits:
                return entity, limits[key]
        return None

    def _usage_of(self, context: RequestContext, key: str, entity: Entity) -> WindowedRate:
        """Clients share what they use if their limit does not depend on the user, or not on the client id."""
        user = context.principal.name if entity.user is not None else None
        client = (context.client_id or "") if entity.client is not None else None
        name = key, user, client
        usage = self._usage.get(name)
        if usage is None:
            least = max(1, self._windows - 1) * self._window_seconds
            usage = WindowedRate(self._clock, self._windows, self._window_seconds, least_seconds=least)
            self._usage[name] = usage
            if len(self._usage) > CLIENTS_MAX:
                self._usage.popitem(last=False)
        self._usage.move_to_end(name)
        return usage
