"""`make cases`: behaviour case -> the tests that prove it, and how complete each section of tests/cases.toml is.

    python scripts/cases.py [section ...]     only these, each as if it had landed

It fails when an id of a landed section has no test, and when a marker names an id that is in no section: a misspelt id
would otherwise prove nothing in silence. The markers are read as pytest collects them.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

LIST = Path(__file__).resolve().parent.parent / "tests" / "cases.toml"


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    ids: int
    landed: bool
    about: str

    @property
    def cases(self) -> list[str]:
        return [f"{self.name}-{number:02}" for number in range(1, self.ids + 1)]


def sections() -> list[Section]:
    return [Section(name, **fields) for name, fields in tomllib.loads(LIST.read_text()).items()]


def findings(listed: Sequence[Section], proven: Set[str]) -> list[str]:
    """What makes the run fail, one line each."""
    known = {case for section in listed for case in section.cases}
    missing = [case for section in listed if section.landed for case in section.cases if case not in proven]
    return [
        *(f"{case} has no test, and its section has landed" for case in missing),
        *(f"{case} is in no section of {LIST.name}" for case in sorted(proven - known)),
    ]


class Collector:
    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for marker in item.iter_markers("case"):
                for case in marker.args:
                    self.tests[case].add(item.nodeid.partition("[")[0])  # once for all parameters


def collect() -> Mapping[str, set[str]]:
    collector = Collector()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-qq"], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(said.getvalue() or "pytest could not collect the tests")
    return collector.tests


def main(wanted: Sequence[str]) -> int:
    listed = sections()
    if unknown := set(wanted) - {section.name for section in listed}:
        sys.exit(f"no such section in {LIST.name}: {', '.join(sorted(unknown))}")
    tests = collect()
    if wanted:
        listed = [replace(section, landed=True) for section in listed if section.name in wanted]
        tests = {case: found for case, found in tests.items() if case.rpartition("-")[0] in wanted}
    wrong = findings(listed, tests.keys())
    for section in listed:
        for case in section.cases:
            if case in tests:
                print(f"{case:<10} {', '.join(sorted(tests[case]))}")
    print()
    for section in listed:
        proven = sum(case in tests for case in section.cases)
        print(
            f"{section.name:<4} {proven:3} of {section.ids:3}  {'landed' if section.landed else '':<7} {section.about}"
        )
    print(f"{len(tests)} cases proven; {len(wrong)} findings")
    for finding in wrong:
        print(finding, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
