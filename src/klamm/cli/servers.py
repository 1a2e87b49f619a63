"""klamm up, broker and zookeeper run servers. They import them late, so that other commands start fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.broker import start
from klamm.cli.output import clear_errors


def up(
    brokers: Annotated[int, typer.Option(min=1, help="Number of brokers.")] = 3,
    zookeeper: Annotated[
        str,
        typer.Option(
            help="embedded (Apache ZooKeeper, needs Java), memory (klamm's own), or HOST:PORT or HOST:PORT/chroot of "
            "yours. The default is embedded if Java and its jars are installed, else memory."
        ),
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="Directory for the data. Without this option, the data is removed at the end.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of the first broker; the others use the next ones. 0 picks free ports."
        ),
    ] = 9092,
) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    from klamm.server.run_cluster import run_cluster

    with clear_errors():
        run_cluster(brokers=brokers, zookeeper=zookeeper, data=data, port=port)


def broker(
    server_properties: Annotated[Path, typer.Argument(help="A Kafka server.properties file.")],
    override: Annotated[list[str] | None, typer.Option("--override", help="key=value; may be repeated.")] = None,
) -> None:
    """Run one broker in the foreground. SIGTERM starts a controlled shutdown."""
    with clear_errors():
        start(str(server_properties), override or [])


def zookeeper(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 2181,
    data: Annotated[
        Path | None, typer.Option(help="Directory for the journal, synced before each answer. Default: memory only.")
    ] = None,
) -> None:
    """Run klamm's own ZooKeeper server in the foreground."""
    from klamm.server.run_zookeeper import run_zookeeper

    with clear_errors():
        run_zookeeper(port=port, data=data)
