"""`--help` of every command works and shows the whole text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from klamm.cli.app import app


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)


COMMANDS = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) or "klamm" for path, _ in COMMANDS])
def test_help_shows_every_text(path: tuple[str, ...], command: Any) -> None:
    """Rich reads brackets in a help text as markup: an unknown closing tag is an error, other tags disappear."""
    result = CliRunner().invoke(app, [*path, "--help"], env={"TERMINAL_WIDTH": "400", "COLUMNS": "400"})
    assert result.exit_code == 0, result.exception
    for text in (command.help, *(getattr(parameter, "help", None) for parameter in command.params)):
        for line in (text or "").splitlines():
            assert line.strip() in result.output


def test_every_command_and_parameter_has_a_help_text() -> None:
    missing = [
        " ".join((*path, parameter.name))
        for path, command in COMMANDS
        for parameter in command.params
        if not parameter.help
    ]
    assert not missing
    assert not [path for path, command in COMMANDS if not command.help]


def test_every_command_has_an_example() -> None:
    leaves = [(path, command) for path, command in COMMANDS if not hasattr(command, "commands")]
    assert not {path for path, command in leaves if "Example: " not in command.help}


WITHOUT_CLUSTER = ("lake", "incidents", "dashboard")
"""Nouns whose commands name lists of topics, or nothing of a cluster."""


COMPLETED = {"topic", "topics", "group", "broker", "context"}
"""Parameters that name something of a cluster, or a context."""


def test_names_are_completed() -> None:
    leaves = [(path, command) for path, command in COMMANDS if path and path[0] not in WITHOUT_CLUSTER]
    silent = [
        " ".join((*path, parameter.name))
        for path, command in leaves
        for parameter in command.params
        if parameter.name in COMPLETED and parameter._custom_shell_complete is None
    ]
    assert not silent
