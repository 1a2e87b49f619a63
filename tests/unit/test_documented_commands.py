"""Every `klamm ...` line in README, docs and help texts is a command that exists, with options and values it takes.

`tests/integration/test_getting_started.py` runs those of docs/getting-started.md on a cluster.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from klamm.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^( *)```[a-z]*\n(.*?)^ *```", re.M | re.S)
COMMAND = typer.main.get_command(app)


def lines_of(page: Path) -> Iterator[str]:
    for block in BLOCK.finditer(page.read_text()):
        for line in block[2].replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|", line.partition("  #")[0]):
                words = part.strip().removeprefix("$ ")
                if words.startswith("klamm ") and not words.startswith("klamm is "):
                    yield words


DOCUMENTED = [(page.relative_to(ROOT), line) for page in PAGES for line in lines_of(page)]


@pytest.mark.parametrize(("page", "line"), DOCUMENTED, ids=[f"{page} {line}" for page, line in DOCUMENTED])
def test_a_documented_command_exists(page: Path, line: str) -> None:
    check(shlex.split(line)[1:])


@pytest.fixture(autouse=True)
def _no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def check(words: list[str]) -> None:
    """Find the command and parse its line, as a call would. Only files need not exist."""
    command: Any = COMMAND
    context = command.make_context("klamm", ["--context", ""], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words, "the line names a group of commands, not a command"
        name, *words = words
        assert name in command.commands, f"there is no {name!r}"
        command = command.commands[name]
        if hasattr(command, "commands"):
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
    try:
        command.make_context(name, words, parent=context)
    except Exception as error:
        if "does not exist" not in str(error):
            raise


def test_wrong_commands_are_found() -> None:
    for words in (
        ["topics", "lost"],
        ["topics"],
        ["topics", "grow", "t", "--partitions", "x"],
        ["up", "--bokers", "3"],
    ):
        with pytest.raises(Exception, match=r".") as found:
            check(words)
        assert found.type.__name__ in ("AssertionError", "NoSuchOption", "BadParameter")


def test_there_are_many() -> None:
    assert len(DOCUMENTED) > 100
