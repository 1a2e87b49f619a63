"""The steps of a fail-over add up to the whole, also when the brokers have not written all their events yet."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.bench.failover import split

KILLED, ACKNOWLEDGED = 100.0, 101.0
SUSPECTED = {"event": "broker-suspected", "time_ms": 100_200}
COMMITTED = [{"partition": n, "role": "controller", "time_ms": 100_300 + 100 * n} for n in range(2)]
TOLD = [{"partition": n, "role": "broker", "time_ms": 100_500} for n in range(2)]


def test_each_step_ends_where_the_next_begins() -> None:
    steps = split([SUSPECTED, *COMMITTED, *TOLD], KILLED, ACKNOWLEDGED)
    assert steps == pytest.approx({"detect": 0.2, "decide": 0.1, "commit": 0.1, "tell": 0.1, "client": 0.5})


@pytest.mark.parametrize(
    "events",
    [
        [],
        [SUSPECTED],
        [SUSPECTED, *TOLD],
        [*COMMITTED, {**SUSPECTED, "time_ms": 102_000}],
        [SUSPECTED, *COMMITTED, {**TOLD[0], "time_ms": 100_250}],
    ],
)
def test_what_is_not_written_yet_counts_for_the_next_step(events: list[dict[str, Any]]) -> None:
    steps = split(events, KILLED, ACKNOWLEDGED)
    assert sum(steps.values()) == pytest.approx(ACKNOWLEDGED - KILLED)
    assert min(steps.values()) >= 0
