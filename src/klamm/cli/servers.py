"""klamm up, broker and zookeeper: the commands that start servers, which they import lazily: clients stay light."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.broker import start
from klamm.cli.output import clear_errors


def up(
    brokers: Annotated[int, typer.Option(min=1, help="How many brokers.")] = 3,
    zookeeper: Annotated[
        str,
        typer.Option(help="embedded (the real one, needs Java), memory (ours), or HOST:PORT[/chroot] of your own."),
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="Keep data here; without it everything ends with the cluster.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the first broker; the others follow. 0: free ones.")
    ] = 9092,
) -> None:
    """Start a cluster on this machine. Ctrl-C ends it."""
    from klamm.server.run_cluster import run_cluster

    with clear_errors():
        run_cluster(brokers=brokers, zookeeper=zookeeper, data=data, port=port)


def broker(
    server_properties: Annotated[Path, typer.Argument(help="Kafka's server.properties.")],
    override: Annotated[list[str] | None, typer.Option("--override", help="key=value, repeatable.")] = None,
) -> None:
    """Run one broker in the foreground. SIGTERM is a controlled shutdown."""
    with clear_errors():
        start(str(server_properties), override or [])


def zookeeper(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 2181,
    data: Annotated[Path | None, typer.Option(help="Journal here, synced before answering; else memory only.")] = None,
) -> None:
    """Run our own ZooKeeper in the foreground."""
    from klamm.server.run_zookeeper import run_zookeeper

    with clear_errors():
        run_zookeeper(port=port, data=data)
