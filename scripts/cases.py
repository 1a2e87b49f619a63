"""`make cases`: each behaviour case with its sentence and its tests, and how complete each section is.

    python scripts/cases.py [section ...]     only these, each as if it were finished

It fails when an id of a landed section has no test, when a marker names an id that is not in tests/cases.toml, and when
the ids of a section do not count from 1. The markers are read as pytest collects them.
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
    about: str
    landed: bool
    cases: Mapping[str, str]
    """The sentence of each id, in order."""


def sections() -> list[Section]:
    return [section(name, **fields) for name, fields in tomllib.loads(LIST.read_text()).items()]


def section(name: str, about: str, landed: bool, **cases: str) -> Section:
    return Section(name, about, landed, cases)


def findings(listed: Sequence[Section], proven: Set[str]) -> list[str]:
    """Everything that makes the run fail, one line each."""
    known = {case for section in listed for case in section.cases}
    unnumbered = [
        f"{section.name}: found {case} where {expected} is expected"
        for section in listed
        for number, case in enumerate(section.cases, start=1)
        if case != (expected := f"{section.name}-{number:02}")
    ]
    missing = [case for section in listed if section.landed for case in section.cases if case not in proven]
    return [
        *unnumbered,
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
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-qq"], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(output.getvalue() or "pytest could not collect the tests")
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
        for case, sentence in section.cases.items():
            print(f"{case:<8} {sentence}")
            for test in sorted(tests.get(case, ["no test yet"])):
                print(f"{'':<8} {test}")
    print()
    for section in listed:
        proven = sum(case in tests for case in section.cases)
        print(
            f"{section.name:<4} {proven:3} of {len(section.cases):3}"
            f"  {'landed' if section.landed else '':<7} {section.about}"
        )
    print(f"{len(tests)} cases proven; {len(wrong)} findings")
    for finding in wrong:
        print(finding, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
