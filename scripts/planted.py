"""`make planted`: plants bugs from Kafka's history in a copy of the tree: no unit test finds them, the simulation does.

    python scripts/planted.py [--quick] [word ...]     only the bugs whose name, row or file contains one of the words

With a bug of tests/planted.toml the unit tests of controller and ZooKeeper client must pass, or it would prove nothing
about the simulation, and the simulation must violate one of the listed invariants within SEEDS seeds, counted from 0,
or within as many as the list allows for a rare bug. Without a bug both must pass. The seed that finds a bug changes
with the code, so it is printed but not recorded. `--quick` runs only the simulation, and only with the bugs.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mistakes import ROOT, TextNotFoundOnce, copied_tree, mistake, run, run_tests

LIST = ROOT / "tests" / "planted.toml"
UNIT_TESTS = ("tests/unit/controller", "tests/unit/zookeeper")
SEEDS = 200
QUICK = "--quick"


class Bug(NamedTuple):
    name: str
    row: str
    """The issue or incident that it repeats."""
    invariants: list[str]
    """The invariants that may find it first."""
    file: str
    old: str
    new: str
    seeds: int = SEEDS


class Finding(NamedTuple):
    """The results of the simulation and the unit tests for a tree."""

    violated: str
    """The invariant; empty if none was violated."""
    about: str
    seed: int
    unit_tests: str
    """green, red, or not run."""


def look_at(tree: Path, *, seeds: int = SEEDS, unit_tests: bool) -> Finding:
    tests = "not run"
    if unit_tests:
        tests = "green" if run_tests(tree, UNIT_TESTS).returncode == 0 else "red"
    result = run(tree, "-m", "klamm", "simulate", "--seed", "0", "--seeds", str(seeds), "--fail-fast", "--json")
    try:
        last: dict[str, Any] = json.loads(result.stdout)["runs"][-1]
    except ValueError:
        return Finding("the simulation did not run", result.stderr[-2000:], 0, tests)
    if last["holds"]:
        return Finding("", f"held over {seeds} seeds", last["seed"], tests)
    return Finding(last["invariant"], last["about"], last["seed"], tests)


def judge(tree: Path, bug: Bug, *, unit_tests: bool) -> tuple[Finding | None, str]:
    """The results, and why they do not count; empty if they do."""
    try:
        with mistake(tree, bug.file, bug.old, bug.new):
            found = look_at(tree, seeds=bug.seeds, unit_tests=unit_tests)
    except TextNotFoundOnce as error:
        return None, str(error)
    if found.violated not in bug.invariants:
        return found, f"expected {' or '.join(bug.invariants)}, found {found.violated or 'nothing'}: {found.about}"
    if found.unit_tests == "red":
        return found, "a unit test finds it too"
    return found, ""


def main(arguments: Sequence[str]) -> int:
    words, unit_tests = [word for word in arguments if word != QUICK], QUICK not in arguments
    listed = [Bug(**entry) for entry in tomllib.loads(LIST.read_text())["bug"]]
    wanted = [b for b in listed if not words or any(word in f"{b.name} {b.row} {b.file}" for word in words)]
    bad = 0
    with copied_tree() as tree:
        if unit_tests:
            clean = look_at(tree, unit_tests=True)
            if clean.violated or clean.unit_tests == "red":
                print(f"without any bug: {clean}")
                return 1
        print(f"{'bug':<84} {'of':<16} {'found by':<8} {'seed':>4} {'seeds run':>9} {'unit tests':>10} {'seconds':>7}")
        for bug in wanted:
            started = time.monotonic()
            found, wrong = judge(tree, bug, unit_tests=unit_tests)
            bad += bool(wrong)
            took = time.monotonic() - started
            columns = f"{'':<8} {'':>4} {'':>9} {'':>10}"
            if found is not None:
                columns = f"{found.violated:<8} {found.seed:>4} {found.seed + 1:>9} {found.unit_tests:>10}"
            print(f"{bug.name:<84} {bug.row:<16} {columns} {took:>7.1f}", flush=True)
            print(f"    {f'FAILED: {wrong}' if wrong else found.about if found else ''}", flush=True)
    print(f"{len(wanted) - bad} of {len(wanted)} found by the simulation")
    return 1 if bad or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
