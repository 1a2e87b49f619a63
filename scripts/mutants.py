"""`make mutants`: makes each mistake of tests/mutants.toml in a copy of the tree; its tests must fail.

    python scripts/mutants.py [word ...]     only the mutants whose name, file or tests contain one of the words

The list has small mistakes that were made or could be, each with the tests that must catch it. First all these tests
run without a mistake, so that a broken environment does not count as a caught mistake. A text that is not in its file
exactly once is an error before that: the code has changed, and the list must follow. At the end the script prints how
many mutants each section of behaviour cases has; it needs one for every three ids.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import cases
from mistakes import RED, ROOT, copy_tree, mistake, run_tests

LIST = ROOT / "tests" / "mutants.toml"
WORKERS = 2
"""Each has its own copy of the tree. With more workers, tests would fail because the machine is busy."""
IDS_PER_MUTANT = 3
SAID_MAX = 200


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list[str]


class MutantResult(NamedTuple):
    caught: bool
    said: str
    """The first test that failed and how, or why the mistake does not count as caught."""


class Section(NamedTuple):
    name: str
    ids: int
    mutants: int

    @property
    def is_short(self) -> bool:
        return self.mutants * IDS_PER_MUTANT < self.ids


def read() -> tuple[list[Mutant], list[str]]:
    """The mutants, and the sections that must have enough of them."""
    document = tomllib.loads(LIST.read_text())
    return [Mutant(**entry) for entry in document["mutant"]], document["sections"]


def count(mutants: Iterable[Mutant], wanted: Iterable[str]) -> list[Section]:
    ids = {section.name: len(section.cases) for section in cases.sections()}
    named = Counter(match[1] for m in mutants if (match := re.match(r"([A-Z]+)-\d+ ", m.name)))
    return [Section(name, ids[name], named[name]) for name in wanted]


def findings(mutants: Sequence[Mutant], sections: Sequence[Section]) -> list[str]:
    """What is wrong with the list itself, one line each."""
    names = Counter(m.name for m in mutants)
    tests = {test for m in mutants for test in m.tests}
    return [
        *(f"{name!r} is listed {times} times" for name, times in names.items() if times > 1),
        *(
            f"{m.name!r}: its text is in {m.file} {found} times"
            for m in mutants
            if (found := (ROOT / m.file).read_text().count(m.old)) != 1
        ),
        *(f"{test} does not exist" for test in sorted(tests) if not _exists(test)),
        *(f"{s.name}: {s.mutants} mutants for {s.ids} ids" for s in sections if s.is_short),
    ]


def _exists(test: str) -> bool:
    """Whether the file, or the test in it, exists. Parameters are not checked, because only pytest knows them."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    found = {getattr(node, "name", "") for node in ast.walk(ast.parse((ROOT / path).read_text()))}
    return not name or found.issuperset(name.partition("[")[0].split("::"))


def try_mutant(tree: Path, mutant: Mutant) -> MutantResult:
    with mistake(tree, mutant.file, mutant.old, mutant.new):
        result = run_tests(tree, mutant.tests)
    if result.returncode == RED:
        first = re.search(r"^(?:FAILED|ERROR) (tests/.*)", result.stdout, re.MULTILINE)
        return MutantResult(True, first[1][:SAID_MAX] if first else "by an unnamed test")
    if result.returncode == 0:
        return MutantResult(False, f"not caught by {' '.join(mutant.tests)}")
    return MutantResult(False, f"its tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")


def batches(tests: Iterable[str]) -> list[list[str]]:
    """The run without a mistake: tests that start processes file by file, spread over the workers, then all unit tests
    at once. Single tests of a file are dropped if the whole file is in the list."""
    by_file: dict[str, set[str]] = defaultdict(set)
    for test in tests:
        by_file[test.partition("::")[0]].add(test)
    named = {file: [file] if file in some else sorted(some) for file, some in sorted(by_file.items())}
    units = [test for file, some in named.items() if file.startswith("tests/unit/") for test in some]
    return [*(some for file, some in named.items() if not file.startswith("tests/unit/")), *([units] if units else [])]


class Trees:
    """The copies of the tree that are free."""

    def __init__(self, directory: Path) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            tree = directory / str(number)
            tree.mkdir()
            copy_tree(tree)
            self._free.put(tree)

    @contextmanager
    def one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


def fails_without_mistake(trees: Trees, pool: ThreadPoolExecutor, mutants: Sequence[Mutant]) -> bool:
    def run(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
        with trees.one() as tree:
            return run_tests(tree, tests)

    results = list(pool.map(run, batches(test for m in mutants for test in m.tests)))
    failed = [result for result in results if result.returncode != 0]
    for result in failed:
        print(f"the tests fail without any mistake:\n{result.stdout[-4000:]}{result.stderr[-2000:]}")
    return bool(failed)


def make_mistakes(trees: Trees, pool: ThreadPoolExecutor, mutants: Sequence[Mutant]) -> int:
    """Make each mistake and return how many were caught."""

    def run(mutant: Mutant) -> bool:
        with trees.one() as tree:
            started = time.monotonic()
            result = try_mutant(tree, mutant)
        seconds, word = time.monotonic() - started, "caught" if result.caught else "FAILED"
        print(f"{word}  {seconds:5.1f} s  {mutant.name}\n                  {result.said}", flush=True)
        return result.caught

    # Tests with processes take longest and start first; at the end they would leave the other workers idle.
    ordered = sorted(mutants, key=lambda m: all(test.startswith("tests/unit/") for test in m.tests))
    return sum(done.result() for done in as_completed([pool.submit(run, mutant) for mutant in ordered]))


def main(words: Sequence[str]) -> int:
    listed, names = read()
    sections = count(listed, names)
    if wrong := findings(listed, sections):
        print("\n".join(wrong))
        return 1
    wanted = [m for m in listed if not words or any(word in f"{m.name} {m.file} {m.tests}" for word in words)]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory, ThreadPoolExecutor(WORKERS) as pool:
        trees = Trees(Path(directory))
        if fails_without_mistake(trees, pool, wanted):
            return 1
        print(f"all tests pass without a mistake: {time.monotonic() - started:.0f} s", flush=True)
        caught = make_mistakes(trees, pool, wanted)
    for section in sections:
        print(f"{section.name:<4} {section.ids:3} ids {section.mutants:3} mutants")
    print(f"{caught} of {len(wanted)} caught in {time.monotonic() - started:.0f} s")
    return 0 if wanted and caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
