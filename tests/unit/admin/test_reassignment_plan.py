"""Plans that cannot be carried out, with the reason."""

from __future__ import annotations

import pytest

from klamm.admin.reassignment_plan import PlannedMove, parse, problems

KNOWN = {("t", 0), ("t", 1)}
BROKERS = [1, 2, 3]
DIRECTORIES = {1: ["/a", "/b"], 2: ["/c"]}


@pytest.mark.case("RAS-10")
@pytest.mark.parametrize(
    ("move", "why"),
    [
        (PlannedMove("t", 7, (1,)), "t-7 does not exist"),
        (PlannedMove("nothing", 0, (1,)), "nothing-0 does not exist"),
        (PlannedMove("t", 0, ()), "t-0 would have no replica"),
        (PlannedMove("t", 0, (1, 1)), "t-0 names a broker twice"),
        (PlannedMove("t", 0, (1, 77)), "t-0 names unknown brokers [77]"),
        (PlannedMove("t", 0, (1, 2), ("/a",)), "t-0 names 1 log directories for 2 replicas"),
        (PlannedMove("t", 0, (1, 2), ("/a", "/b")), "t-0 names /b, which is not a log directory of broker 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(move: PlannedMove, why: str) -> None:
    assert problems([PlannedMove("t", 1, (1, 2)), move], KNOWN, BROKERS, DIRECTORIES) == [why]


def test_accepted_and_named_twice() -> None:
    good = PlannedMove("t", 0, (1, 2, 3), ("/b", "/c", "any"))
    assert problems([good], KNOWN, BROKERS, DIRECTORIES) == []
    assert good.named_directories() == {1: "/b", 2: "/c"}
    assert problems([good, good], KNOWN, BROKERS, DIRECTORIES) == ["t-0 is in the plan twice"]


def test_as_kafkas_tools_write_it() -> None:
    entry = {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/c"]}
    assert parse({"version": 1, "partitions": [entry]}) == [PlannedMove("t", 0, (1, 2), ("any", "/c"))]
    for bad in ({}, {"partitions": [{}]}, {"partitions": [{**entry, "partition": "x"}]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            parse(bad)
