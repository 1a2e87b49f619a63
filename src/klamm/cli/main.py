"""The entry point of the klamm command: it starts a broker without Typer and leaves every other command to Typer.

The cluster lacks a broker while it restarts. Imports take much of that time, and Typer is the largest of them.
So this module parses a plain `klamm broker` call itself and leaves requests for help and usage errors to Typer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from klamm import __version__
from klamm.model.errors import KlammError


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"klamm {__version__}")
        return
    asked = broker_arguments(sys.argv[1:])
    if asked is None:
        from klamm.cli.app import app

        app()
        return
    from klamm.cli import broker

    try:
        broker.start(*asked)
    except KlammError as error:
        sys.exit(f"klamm: {error}")


def broker_arguments(arguments: Sequence[str]) -> tuple[str, list[str]] | None:
    """The properties file and the overrides, or None if Typer must handle the call.

    >>> broker_arguments(["broker", "a.properties", "--override", "broker.id=1"])
    ('a.properties', ['broker.id=1'])
    >>> broker_arguments(["broker", "--help"]), broker_arguments(["broker"]), broker_arguments(["topics", "list"])
    (None, None, None)
    """
    if arguments[:1] != ["broker"]:
        return None
    files: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments[1:])
    for argument in rest:
        value = next(rest, None) if argument == "--override" else None
        if value is not None:
            overrides.append(value)
        elif argument.startswith("-"):
            return None
        else:
            files.append(argument)
    return (files[0], overrides) if len(files) == 1 else None
