"""The entry point of the klamm command: it starts servers without Typer and leaves every other command to Typer.

The cluster lacks a broker while it restarts. Imports take much of that time, and Typer is the largest of them; it also
takes half of the memory of a small ZooKeeper. So this module parses plain `klamm broker` and `klamm zookeeper` calls
itself and leaves requests for help and usage errors to Typer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

from klamm import __version__
from klamm.model.errors import KlammError

ZOOKEEPER_PORT: Final = 2181
DASHBOARD_PORT: Final = 8080
PORT_MAX: Final = 65535


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"klamm {__version__}")
        return
    broker_asked = broker_arguments(sys.argv[1:])
    zookeeper_asked = zookeeper_arguments(sys.argv[1:])
    try:
        if broker_asked is not None:
            from klamm.cli import broker

            broker.start(*broker_asked)
        elif zookeeper_asked is not None:
            from klamm.server.run_zookeeper import run_zookeeper

            run_zookeeper(**zookeeper_asked)
        else:
            if sys.argv[1:2] == ["up"] and "--help" not in sys.argv:
                from klamm.server import fork_server

                fork_server.begin("broker", "http")  # it imports while this process imports Typer

            from klamm.cli.app import app

            app()
    except KlammError as error:
        sys.exit(f"klamm: {error}")


class ZooKeeperArguments(TypedDict):
    port: int
    data: Path | None
    sync: bool


def zookeeper_arguments(arguments: Sequence[str]) -> ZooKeeperArguments | None:
    """None if Typer must handle the call.

    >>> zookeeper_arguments(["zookeeper", "--port", "0", "--no-sync"])
    {'port': 0, 'data': None, 'sync': False}
    >>> zookeeper_arguments(["zookeeper", "--help"]), zookeeper_arguments(["zookeeper", "--port", "70000"])
    (None, None)
    """
    if arguments[:1] != ["zookeeper"]:
        return None
    asked: ZooKeeperArguments = {"port": ZOOKEEPER_PORT, "data": None, "sync": True}
    rest = iter(arguments[1:])
    for argument in rest:
        if argument in ("--sync", "--no-sync"):
            asked["sync"] = argument == "--sync"
            continue
        value = next(rest, "")
        if argument == "--port" and value.isdecimal() and int(value) <= PORT_MAX:
            asked["port"] = int(value)
        elif argument == "--data" and value and not value.startswith("-"):
            asked["data"] = Path(value)
        else:
            return None
    return asked


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
