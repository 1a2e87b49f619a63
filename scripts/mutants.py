"""`make mutants`: each mistake in tests/mutants.toml is made in a copy of the tree, and its tests must turn red.

    python scripts/mutants.py [word ...]     only the mutants whose name, file or tests contain one of the words

A list of small mistakes that were made or feared; each names the tests that stand against it. First all the tests run
without any mistake, so that a broken environment does not pass for a caught one.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mistakes import RED, ROOT, TextNotFoundOnce, copied_tree, mistake, run_tests

LIST = ROOT / "tests" / "mutants.toml"


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def judge(tree: Path, mutant: Mutant) -> str | None:
    """What is wrong, or None when the tests caught it."""
    try:
        with mistake(tree, mutant.file, mutant.old, mutant.new):
            result = run_tests(tree, mutant.tests)
    except TextNotFoundOnce as error:
        return str(error)
    if result.returncode == RED:
        return None
    if result.returncode == 0:
        return f"not caught by {' '.join(mutant.tests)}"
    return f"its tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"


def main(words: Sequence[str]) -> int:
    listed = [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]
    wanted = [m for m in listed if not words or any(word in f"{m.name} {m.file} {m.tests}" for word in words)]
    with copied_tree() as tree:
        clean = run_tests(tree, sorted({test for mutant in wanted for test in mutant.tests}))
        if clean.returncode != 0:
            print(f"the tests fail without any mistake:\n{clean.stdout[-4000:]}{clean.stderr[-2000:]}")
            return 1
        bad = 0
        for mutant in wanted:
            started = time.monotonic()
            wrong = judge(tree, mutant)
            bad += wrong is not None
            verdict = "caught" if wrong is None else f"FAILED: {wrong}"
            print(f"{mutant.name:<72} {time.monotonic() - started:5.1f} s  {verdict}", flush=True)
    print(f"{len(wanted) - bad} of {len(wanted)} caught")
    return 1 if bad or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
