"""The klamm command as a Typer application. Each group of commands has its own module; this file mounts them."""

from __future__ import annotations

import typer

from klamm.cli import messages, servers
from klamm.cli.bench import bench_app
from klamm.cli.controller import controller_app, deletions
from klamm.cli.lake import lake_app
from klamm.cli.leaders import leaders_app
from klamm.cli.reassign import reassign_app
from klamm.cli.simulate import simulate
from klamm.cli.topics import topics_app

app = typer.Typer(
    name="klamm",
    help="A Kafka-compatible cluster around the ZooKeeper-based controller: run it, administer it, test it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command()(servers.up)
app.command()(servers.broker)
app.command()(servers.zookeeper)
app.add_typer(topics_app, name="topics")
app.add_typer(controller_app, name="controller")
app.command()(deletions)
app.add_typer(reassign_app, name="reassign")
app.add_typer(leaders_app, name="leaders")
app.command()(messages.produce)
app.command()(messages.consume)
app.add_typer(lake_app, name="lake")
app.command()(simulate)
app.add_typer(bench_app, name="bench")
