"""The plan as a file: what is executed is what was shown, on the cluster that it was made for."""

from __future__ import annotations

import orjson
import pytest

from klamm.admin.balancing.load import Change, Plan
from klamm.admin.balancing.plan_file import changed_since, decode, encode
from klamm.admin.balancing.planner import PlanRefused
from klamm.admin.reassignment_plan import parse

CHANGES = (Change("t", 0, (1, 2), (3, 2), 10), Change("t", 1, (2, 1), (1, 2), 5))
FILE = encode(Plan(CHANGES, (), ()), cluster_id="c1", made_at_ms=7)


def test_a_plan_survives_its_file() -> None:
    assert decode(FILE, "c1") == list(CHANGES)


def test_the_file_is_a_plan_of_kafkas_own_tool_too() -> None:
    assert [(move.topic, move.partition, move.replicas) for move in parse(orjson.loads(FILE))] == [
        ("t", 0, (3, 2)),
        ("t", 1, (1, 2)),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FILE.replace(b'"partition": 1', b'"partition": 2'), "edited after it was made"),
        (FILE.replace(b'"made_at_ms": 7', b'"made_at_ms": 8'), "edited after it was made"),
        (FILE.replace(b'"format": 1', b'"format": 2'), "plan format 2 is not known"),
        (b'{"version":1,"partitions":[]}', "not a plan of `klamm reassign plan`: KeyError"),
        (b"[]", "not a plan"),
        (b"\x00", "not a plan"),
    ],
)
def test_what_is_not_the_plan_that_was_made_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(PlanRefused, match=message):
        decode(data, "c1")


def test_a_plan_for_another_cluster_is_refused() -> None:
    with pytest.raises(PlanRefused, match="made for cluster c1, this is cluster c2"):
        decode(FILE, "c2")


@pytest.mark.parametrize(
    ("current", "difference"),
    [
        ({("t", 0): (1, 2), ("t", 1): (2, 1)}, None),
        ({("t", 0): (1, 2)}, "t-1 no longer exists"),
        ({("t", 0): (1, 3), ("t", 1): (2, 1)}, "t-0 is on [1, 3] now, it was on [1, 2]"),
    ],
)
def test_the_first_difference_of_the_cluster_is_named(
    current: dict[tuple[str, int], tuple[int, ...]], difference: str | None
) -> None:
    assert changed_since(list(CHANGES), current) == difference
