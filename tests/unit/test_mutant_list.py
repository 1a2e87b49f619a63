"""The list of mutants follows the code and the tests, and each section of cases has its share of them."""

from __future__ import annotations

import mutants as script
import pytest

FILE, TEST = "scripts/mistakes.py", "tests/unit/test_mutant_list.py"


def test_the_list_holds() -> None:
    mutants, names = script.read()
    assert script.findings(mutants, script.count(mutants, names)) == []


@pytest.mark.parametrize(
    ("mutants", "found"),
    [
        ([("a", FILE, "RED = 1", [f"{TEST}::test_the_list_holds[x]"])], []),
        ([("a", FILE, "RED = 1", [TEST])] * 2, ["'a' is listed 2 times"]),
        ([("a", FILE, "RED = 2", [TEST])], [f"'a': its text is in {FILE} 0 times"]),
        ([("a", FILE, "def ", [TEST])], None),
        ([("a", FILE, "RED = 1", ["tests/unit/test_nobody.py"])], ["tests/unit/test_nobody.py does not exist"]),
        ([("a", FILE, "RED = 1", ["tests/unit"])], ["tests/unit does not exist"]),
        ([("a", FILE, "RED = 1", [f"{TEST}::test_nobody"])], [f"{TEST}::test_nobody does not exist"]),
    ],
)
def test_what_is_wrong_with_a_list(mutants: list[tuple[str, str, str, list[str]]], found: list[str] | None) -> None:
    made = [script.Mutant(name, file, old, "", tests) for name, file, old, tests in mutants]
    said = script.findings(made, [])
    assert said == found if found is not None else len(said) == 1


@pytest.mark.parametrize(("names", "short"), [(["EVT-01 a", "EVT-04 b"], False), (["EVT-01 a", "EVTX b", "c"], True)])
def test_a_mutant_for_every_three_ids(names: list[str], short: bool) -> None:
    made = [script.Mutant(name, FILE, "RED = 1", "", [TEST]) for name in names]
    (section,) = script.count(made, ["EVT"])
    assert (section.ids, section.is_short) == (4, short)
    assert [line for line in script.findings(made, [section]) if line.startswith("EVT:")] == (
        ["EVT: 1 mutants for 4 ids"] if short else []
    )
