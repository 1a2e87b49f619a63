"""Mistakes made on purpose, in a copy of the tree: what `make mutants` and `make planted` share.

The checkout is never touched. A mistake whose text is not found exactly once is an error: the code has moved on, and
the list must follow it.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = (
    *("src", "tests", "scripts", "docs", ".ci", "pyproject.toml", "Makefile", ".pre-commit-config.yaml"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
SECONDS_PER_TEST = 60
RED = 1  # pytest's code for failed tests; any other means that they could not be run


class TextNotFoundOnce(Exception):
    pass


def copy_tree(target: Path) -> None:
    """With byte code that names the hash of its source: a mistake is noticed by what it says, not by when it was made,
    and every other module is compiled already."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target / name)
    compileall.compile_dir(target / "src", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


@contextmanager
def copied_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="klamm-mistakes-") as directory:
        copy_tree(Path(directory))
        yield Path(directory)


@contextmanager
def mistake(tree: Path, file: str, old: str, new: str) -> Iterator[None]:
    path = tree / file
    original = path.read_text()
    if (found := original.count(old)) != 1:
        raise TextNotFoundOnce(f"its text is in {file} {found} times")
    path.write_text(original.replace(old, new))
    try:
        yield
    finally:
        path.write_text(original)


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python, with the copy's modules in front of the installed ones."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def run_tests(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return run(tree, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={SECONDS_PER_TEST}", *tests)
