"""`make cases` is red for what it must be red for."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "cases.py"))
LANDED = SCRIPT["Section"]("ABC", 3, True, "landed")
OPEN = SCRIPT["Section"]("XY", 101, False, "still open")


@pytest.mark.parametrize(
    ("proven", "found"),
    [
        ({"ABC-01", "ABC-02", "ABC-03", "XY-100"}, []),
        ({"ABC-01", "ABC-03"}, ["ABC-02 has no test, and its section has landed"]),
        ({"ABC-01", "ABC-02", "ABC-03", "ABC-04"}, ["ABC-04 is in no section of cases.toml"]),
        (
            {"ABC-01", "ABC-02", "ABC-03", "ABD-01", "XY-1"},
            [f"{id} is in no section of cases.toml" for id in ("ABD-01", "XY-1")],
        ),
    ],
)
def test_an_id_without_a_test_and_an_id_that_does_not_exist(proven: set[str], found: list[str]) -> None:
    assert SCRIPT["findings"]([LANDED, OPEN], proven) == found


def test_the_list_itself_reads() -> None:
    listed = {section.name: section for section in SCRIPT["sections"]()}
    assert listed["ZK"].cases[-1] == "ZK-101" and listed["PSM"].cases[3] == "PSM-04"
