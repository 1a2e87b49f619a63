"""Bugs planted in the code: the simulation finds each of them (`make planted`)."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUGS = tomllib.loads((ROOT / "tests" / "planted.toml").read_text())["bug"]
QUICK = (
    "calls that wait in the queue get no answer when the session ends",
    "acks=all is answered when the leader has it",
)
"""Bugs that a few seeds find, whichever seeds: if not, something else is broken."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["name"])
def test_the_code_has_not_moved_away_from_the_bug(bug: dict[str, str]) -> None:
    assert (ROOT / bug["file"]).read_text().count(bug["old"]) == 1


@pytest.mark.timeout(3600)
def test_the_simulation_finds_planted_bugs(scaled: Callable[[int, int], int]) -> None:
    chosen = ["--quick", *QUICK][: scaled(1 + len(QUICK), 0)]
    command = [sys.executable, str(ROOT / "scripts" / "planted.py"), *chosen]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
