"""Sessions: the exact tick at which they expire."""

from __future__ import annotations

import random
from typing import Any

import pytest

from klamm.zookeeper.server.sessions import SessionTable


def table() -> SessionTable[Any]:
    return SessionTable(tick_ms=500, timeout_ms_min=1000, timeout_ms_max=10_000, random=random.Random(1))


@pytest.mark.case("ZK-03")
@pytest.mark.parametrize(("wanted", "given"), [(-5, 1000), (0, 1000), (1000, 1000), (3000, 3000), (10**7, 10_000)])
def test_clamp(wanted: int, given: int) -> None:
    assert table().clamp(wanted) == given


@pytest.mark.case("ZK-11")
@pytest.mark.parametrize("start_ms", range(0, 1000, 50))
def test_expiry_is_within_a_tick_after_the_timeout(start_ms: int) -> None:
    sessions = table()
    sessions.add(1, b"", 1000, start_ms)
    due = sessions.next_expiry_ms()
    assert due is not None
    assert start_ms + 1000 < due <= start_ms + 1500
    assert due % 500 == 0
    assert sessions.expired(due - 1) == []
    assert sessions.expired(due) == [1]


@pytest.mark.case("ZK-16")
def test_touch_moves_the_end() -> None:
    sessions = table()
    session = sessions.add(1, b"", 1000, 0)
    for now_ms in range(0, 5000, 100):
        sessions.touch(session, now_ms)
        assert sessions.expired(now_ms) == []
    assert sessions.next_expiry_ms() == 6000


def test_removed_sessions_do_not_expire() -> None:
    sessions = table()
    sessions.add(1, b"", 1000, 0)
    sessions.add(2, b"", 1000, 0)
    sessions.remove(1)
    assert sessions.expired(10_000) == [2]
    sessions.remove(2)
    assert sessions.next_expiry_ms() is None


def test_ids_rise_even_when_the_clock_goes_back() -> None:
    sessions = table()
    ids = [sessions.new_id(wall_ms) for wall_ms in (1000, 1000, 500, 2000, 1999)]
    assert ids == sorted(set(ids))
    assert all(session_id >> 56 == 1 for session_id in ids)


def test_ids_are_new_after_a_restart_within_the_same_millisecond() -> None:
    known = table().new_id(1000)
    restarted = table()
    restarted.add(known, b"", 1000, 0)
    assert restarted.new_id(1000) > known
