"""`make cases` fails for an id without a test, a test without an id, and a list that does not count."""

from __future__ import annotations

import cases as script
import pytest


def numbered(name: str, count: int) -> dict[str, str]:
    return {f"{name}-{number:02}": "Something happens." for number in range(1, count + 1)}


LANDED = script.Section("ABC", "landed", True, numbered("ABC", 3))
OPEN = script.Section("XY", "still open", False, numbered("XY", 101))


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
    assert script.findings([LANDED, OPEN], proven) == found


def test_ids_count_from_one_without_a_gap() -> None:
    gap = script.section("PQ", "a gap", False, **{"PQ-01": "First.", "PQ-03": "Third."})
    assert script.findings([gap], set()) == ["PQ: found PQ-03 where PQ-02 is expected"]


def test_every_id_of_the_list_has_a_sentence() -> None:
    listed = script.sections()
    wrong = [line for line in script.findings(listed, set()) if "has no test" not in line]
    sentences = [(case, text) for section in listed for case, text in section.cases.items()]
    wrong += [f"{case}: {text}" for case, text in sentences if not text.endswith(".") or len(text) < 20]
    assert not wrong and len({text for _, text in sentences}) == len(sentences)
