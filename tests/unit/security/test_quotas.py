"""Client quotas: which limit applies, how usage is measured, and how long a client waits."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.requests import Principal, RequestContext
from klamm.model.settings import INT_MAX
from klamm.security import quotas as module
from klamm.security.quotas import (
    DEFAULT,
    FETCH_RATE,
    PRODUCE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Entity,
    precedence,
)
from klamm.security.windowed_rate import WindowedRate


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quotas(clock: Any) -> ClientQuotas:
    return ClientQuotas(clock)


def client(user: str = "alice", client_id: str | None = "app") -> RequestContext:
    return RequestContext(Principal("User", user), "CLIENT", client_id, "127.0.0.1:1", False)


def test_the_most_specific_limit_applies() -> None:
    assert list(precedence("alice", "app")) == [
        ("alice", "app"),
        ("alice", DEFAULT),
        ("alice", None),
        (DEFAULT, "app"),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
        (None, "app"),
        (None, DEFAULT),
    ]


@pytest.mark.parametrize("first", range(8))
def test_each_level_beats_those_after_it(quotas: ClientQuotas, first: int) -> None:
    levels = list(precedence("alice", "app"))
    for number, entity in reversed(list(enumerate(levels))[first:]):
        quotas.set_limits(entity, {FETCH_RATE: 100 + number})
    assert quotas.fetch_bytes_max(client()) == (100 + first) * 10
    quotas.set_limits(levels[first], {PRODUCE_RATE: 1})
    expected = (101 + first) * 10 if first < 7 else INT_MAX
    assert quotas.fetch_bytes_max(client()) == expected, "a level without this key does not count"


def test_without_a_limit_nothing_is_measured(quotas: ClientQuotas) -> None:
    assert quotas.throttle(client(), "Produce", 1 << 40, 1e6) == 0
    assert quotas.fetch_bytes_max(client()) == INT_MAX
    assert not quotas.counts_time
    quotas.set_limits(Entity("bob", None), {PRODUCE_RATE: 1})
    assert quotas.throttle(client(), "Produce", 1 << 40, 1e6) == 0
    assert not quotas._usage


def test_the_throttle_time_brings_the_rate_back(quotas: ClientQuotas, clock: Any) -> None:
    """10 full windows of a second are the least that is measured: 20,000 bytes at once are 2,000 a second."""
    quotas.set_limits(Entity("alice", None), {PRODUCE_RATE: 1000})
    assert quotas.throttle(client(), "Produce", 10_000) == 0
    assert quotas.throttle(client(), "Produce", 10_000) == 10_000
    clock.now += 10
    assert quotas.throttle(client(), "Produce", 0) == 0
    assert quotas.throttle(client(), "Metadata", 99_999) == 0, "only Produce and Fetch count bytes"
    clock.now += 12
    assert quotas.throttle(client(), "Produce", 10_000) == 0, "what is old is forgotten"
    assert quotas.throttled == 1


def test_who_shares_a_limit(quotas: ClientQuotas) -> None:
    quotas.set_limits(Entity("alice", None), {PRODUCE_RATE: 1000})
    quotas.set_limits(Entity(None, DEFAULT), {PRODUCE_RATE: 1000})
    assert quotas.throttle(client(client_id="one"), "Produce", 9_000) == 0
    assert quotas.throttle(client(client_id="two"), "Produce", 9_000) > 0, "all clients of alice together"
    assert quotas.throttle(client("bob", "app"), "Produce", 9_000) == 0
    assert quotas.throttle(client("carol", "app"), "Produce", 9_000) > 0, "one client id of all users"
    assert quotas.throttle(client("carol", "other"), "Produce", 9_000) == 0
    assert quotas.throttle(client("carol", None), "Produce", 9_000) == 0


def test_a_throttled_fetch_does_not_count(quotas: ClientQuotas) -> None:
    quotas.set_limits(Entity("alice", None), {FETCH_RATE: 1000})
    assert quotas.throttle(client(), "Fetch", 9_000) == 0
    assert quotas.throttle(client(), "Fetch", 9_000) == 8_000
    assert quotas.throttle(client(), "Fetch", 1_000) == 0, "the 9,000 bytes were not sent"


def test_time_of_the_loop(quotas: ClientQuotas, clock: Any) -> None:
    """20 percent of ten seconds are two seconds."""
    quotas.set_limits(Entity(DEFAULT, None), {REQUEST_PERCENTAGE: 20})
    assert quotas.counts_time
    assert quotas.throttle(client(), "Metadata", 0, 1.9) == 0
    assert quotas.throttle(client(), "ListOffsets", 0, 0.15) == 250
    assert quotas.throttle(client(), "Metadata", 0, 5) == 1_000, "one window at most"


def test_the_longer_throttle_time_counts(quotas: ClientQuotas) -> None:
    quotas.set_limits(Entity("alice", None), {REQUEST_PERCENTAGE: 20, PRODUCE_RATE: 1000})
    assert quotas.throttle(client(), "Produce", 15_000, 9) == 5_000


def test_limits_change_and_go(quotas: ClientQuotas) -> None:
    quotas.set_limits(Entity("alice", None), {PRODUCE_RATE: 1000})
    assert quotas.throttle(client(), "Produce", 20_000) > 0
    quotas.set_limits(Entity("alice", None), {PRODUCE_RATE: 1_000_000})
    assert quotas.throttle(client(), "Produce", 20_000) == 0
    quotas.set_limits(Entity("alice", None), {})
    assert not quotas.limits
    quotas.replace_limits({Entity("alice", None): {PRODUCE_RATE: 5}, Entity("bob", None): {}})
    assert quotas.limits == {Entity("alice", None): {PRODUCE_RATE: 5}}


def test_the_number_of_clients_is_bounded(quotas: ClientQuotas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLIENTS_MAX", 3)
    quotas.set_limits(Entity(None, DEFAULT), {PRODUCE_RATE: 1000})
    for name in ("a", "b", "c", "a", "d"):
        quotas.throttle(client(client_id=name), "Produce", 6_000)
    assert [name for _, _, name in quotas._usage] == ["c", "a", "d"], "the idle one was forgotten"


def test_windows(clock: Any) -> None:
    rate = WindowedRate(clock, 3, 2, least_seconds=4)
    assert rate.rate() == 0
    rate.record(40)
    assert rate.rate() == 10
    clock.now += 5
    rate.record(10)
    assert rate.rate() == 10
    clock.now += 1.5
    assert rate.rate() == 2.5, "the first sample has left"
