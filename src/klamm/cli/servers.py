"""klamm up, broker and zookeeper run servers. They import them late, so that other commands start fast."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.broker import start
from klamm.cli.main import PORT_MAX, ZOOKEEPER_PORT
from klamm.cli.output import clear_errors


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def up(
    brokers: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers. The default is what --data had, or 3.")
    ] = None,
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
        int | None,
        typer.Option(
            min=0,
            max=PORT_MAX,
            help="Port of the first broker; the others use the next ones. 0 picks free ports. The default is what "
            "--data had, or 9092.",
        ),
    ] = None,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=PORT_MAX,
            help="Port of the dashboard. 0 picks a free one. The default is what --data had, or 8080.",
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C. A process that dies is started again.

    ZooKeeper listens on port 2181, the dashboard on 8080, the brokers serve metrics on 29092 and so on; a default that
    another program uses is replaced by a free port. All ports are kept in the --data directory.

    Example: klamm up --brokers 3 --data ./data
    """
    from klamm.server.run_cluster import run_cluster

    with clear_errors():
        run_cluster(brokers=brokers, zookeeper=zookeeper, data=data, port=port, dashboard_port=dashboard_port)


def broker(
    server_properties: Annotated[Path, typer.Argument(help="A Kafka server.properties file.")],
    override: Annotated[list[str] | None, typer.Option("--override", help="key=value; may be repeated.")] = None,
    log_format: Annotated[LogFormat, typer.Option(help="json writes one object per line.")] = LogFormat.TEXT,
    log_file: Annotated[
        Path | None,
        typer.Option(help="Log to this file instead of stderr. At 64 MB it is renamed to FILE.1; four are kept."),
    ] = None,
) -> None:
    """Run one broker in the foreground. SIGTERM starts a controlled shutdown.

    Example: klamm broker server.properties --override broker.id=4 --log-format json
    """
    with clear_errors():
        start(
            str(server_properties),
            override or [],
            json_log=log_format is LogFormat.JSON,
            log_file=None if log_file is None else str(log_file),
        )


def zookeeper(
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="0 picks a free port.")] = ZOOKEEPER_PORT,
    data: Annotated[
        Path | None, typer.Option(help="Directory for the journal, synced before each answer. Default: memory only.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory, which is the default; excludes --data.")
    ] = False,
    sync: Annotated[
        bool, typer.Option(help="Without sync, the journal survives a kill, but not a loss of power.")
    ] = True,
) -> None:
    """Run klamm's own ZooKeeper server in the foreground.

    Example: klamm zookeeper --port 2181 --data ./zookeeper
    """
    from klamm.server.run_zookeeper import run_zookeeper

    if memory and data is not None:
        raise typer.BadParameter("--memory keeps nothing: use it without --data")
    with clear_errors():
        run_zookeeper(port=port, data=data, sync=sync)
