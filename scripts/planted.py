"""`make planted`: plants bugs in a copy of the tree, one at a time; the simulation must find each of them.

    python scripts/planted.py [--quick] [word ...]     only the bugs whose name, row or file contains one of the words

With a bug of tests/planted.toml the simulation must violate one of the listed invariants within SEEDS seeds, counted
from 0, or within as many as the list allows for a rare bug. Without a bug it must not. The first seeds are compared
with those without the bug: `reached` is how many of them run differently, so that the bug had an effect, and `seen`
is how many of them violate an invariant. Bugs in controller and ZooKeeper client come from Kafka's history, and the
unit tests must not find them; bugs with `brokers = true` need whole brokers, and unit tests may find them too. The
seed that finds a bug changes with the code, so it is printed but not recorded. `--quick` leaves the unit tests out.
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
COMPARED = {False: 30, True: 6}
"""The first seeds, with simulated and with real brokers."""
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
    brokers: bool = False
    """It needs whole brokers."""


class Finding(NamedTuple):
    """The results of the simulation and the unit tests for a tree."""

    violated: str
    """The invariant; empty if none was violated."""
    about: str
    seed: int
    unit_tests: str
    """green, red, or not run."""
    reached: int = 0
    seen: int = 0


Outcome = dict[str, Any]
"""The document of one run."""


def simulated(tree: Path, first: int, count: int, *, brokers: bool, fail_fast: bool) -> list[Outcome]:
    """Raises ValueError if the simulation does not run."""
    options = ["--seed", str(first), "--seeds", str(count), "--json"]
    options += ["--brokers"] if brokers else []
    options += ["--fail-fast"] if fail_fast else []
    found = run(tree, "-m", "klamm", "simulate", *options)
    try:
        document = json.loads(found.stdout)
    except ValueError:
        raise ValueError(f"the simulation did not run: {found.stderr[-2000:]}") from None
    runs: list[Outcome] = document.get("runs", [document])
    return runs


def look_at(tree: Path, bug: Bug, without: Sequence[Outcome], *, unit_tests: bool) -> Finding:
    tests = "not run"
    if unit_tests and not bug.brokers:
        tests = "green" if run_tests(tree, UNIT_TESTS).returncode == 0 else "red"
    compared = len(without)
    runs = simulated(tree, 0, compared, brokers=bug.brokers, fail_fast=False)
    reached = sum(one.get("digest") != other.get("digest") for one, other in zip(runs, without, strict=True))
    seen = sum(not one["holds"] for one in runs)
    if not seen and bug.seeds > compared:
        runs += simulated(tree, compared, bug.seeds - compared, brokers=bug.brokers, fail_fast=True)
    first = next((one for one in runs if not one["holds"]), None)
    if first is None:
        return Finding("", f"held over {bug.seeds} seeds", runs[-1]["seed"], tests, reached, seen)
    return Finding(first["invariant"], first["about"], first["seed"], tests, reached, seen)


def judge(tree: Path, bug: Bug, without: Sequence[Outcome], *, unit_tests: bool) -> tuple[Finding | None, str]:
    """The results, and why they do not count; empty if they do."""
    try:
        with mistake(tree, bug.file, bug.old, bug.new):
            found = look_at(tree, bug, without, unit_tests=unit_tests)
    except (TextNotFoundOnce, ValueError) as error:
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
        kinds = sorted({bug.brokers for bug in wanted})
        without = {kind: simulated(tree, 0, COMPARED[kind], brokers=kind, fail_fast=False) for kind in kinds}
        violated = [one for runs in without.values() for one in runs if not one["holds"]]
        is_red = unit_tests and run_tests(tree, UNIT_TESTS).returncode != 0
        if violated or is_red:
            print(f"without any bug: {violated or 'a unit test fails'}")
            return 1
        heads = f"{'found by':<8} {'seed':>4} {'reached':>8} {'seen':>6} {'unit tests':>10} {'seconds':>7}"
        print(f"{'bug':<84} {'of':<16} {heads}")
        for bug in wanted:
            started = time.monotonic()
            found, wrong = judge(tree, bug, without[bug.brokers], unit_tests=unit_tests)
            bad += bool(wrong)
            took = time.monotonic() - started
            columns = f"{'':<8} {'':>4} {'':>8} {'':>6} {'':>10}"
            if found is not None:
                of = len(without[bug.brokers])
                counts = f"{f'{found.reached}/{of}':>8} {f'{found.seen}/{of}':>6}"
                columns = f"{found.violated:<8} {found.seed:>4} {counts} {found.unit_tests:>10}"
            print(f"{bug.name:<84} {bug.row:<16} {columns} {took:>7.1f}", flush=True)
            print(f"    {f'FAILED: {wrong}' if wrong else found.about if found else ''}", flush=True)
    print(f"{len(wanted) - bad} of {len(wanted)} found by the simulation")
    return 1 if bad or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
