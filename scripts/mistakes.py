"""Makes deliberate mistakes in a copy of the tree: the common part of `make mutants` and `make planted`.

The checkout is never touched. A text that is not in its file exactly once is an error: the code has changed, and the
list must follow.
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
RED = 1  # pytest's exit code for failed tests; other codes mean that they did not run


class TextNotFoundOnce(Exception):
    pass


def copy_tree(target: Path) -> None:
    """Copy and compile. The byte code refers to the hash of its source, so that Python notices a changed file by its
    content, not by its modification time."""
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
    """Run Python with the modules of the copy in front of the installed ones."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "1000"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def run_tests(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return run(tree, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={SECONDS_PER_TEST}", *tests)
