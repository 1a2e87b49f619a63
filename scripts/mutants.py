"""`make mutants`: each mistake in tests/mutants.toml is made in a copy of the tree, and its tests must turn red.

    python scripts/mutants.py [word ...]     only the mutants whose name, file or tests contain one of the words

A list of small mistakes that were made or feared; each names the tests that stand against it. The checkout is never
touched. First all the tests run without any mistake, so that a broken environment does not pass for a caught one. A
mistake whose text is not found exactly once fails too: the code has moved on, and the list must follow it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "mutants.toml"
COPIED = ("src", "tests", "scripts", "docs", "pyproject.toml", "README.md", "Makefile")
SECONDS_PER_TEST = 60
RED = 1  # pytest's code for failed tests; any other means that they could not be run


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list[str]


def copy_tree(target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target / name)


def run_tests(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """With the copy's modules in front of the installed ones; without byte code, which could outlive a mistake."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={SECONDS_PER_TEST}"]
    return subprocess.run([*command, *tests], cwd=tree, env=environment, capture_output=True, text=True, check=False)


def judge(tree: Path, mutant: Mutant) -> str | None:
    """What is wrong, or None when the tests caught it."""
    path = tree / mutant.file
    original = path.read_text()
    if (found := original.count(mutant.old)) != 1:
        return f"its text is in {mutant.file} {found} times"
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        result = run_tests(tree, mutant.tests)
    finally:
        path.write_text(original)
    if result.returncode == RED:
        return None
    if result.returncode == 0:
        return f"not caught by {' '.join(mutant.tests)}"
    return f"its tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"


def main(words: Sequence[str]) -> int:
    listed = [Mutant(**entry) for entry in tomllib.loads(LIST.read_text())["mutant"]]
    wanted = [m for m in listed if not words or any(word in f"{m.name} {m.file} {m.tests}" for word in words)]
    with tempfile.TemporaryDirectory(prefix="klamm-mutants-") as directory:
        tree = Path(directory)
        copy_tree(tree)
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
