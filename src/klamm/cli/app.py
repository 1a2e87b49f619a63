"""The klamm command as a Typer application. Each group of commands has its own module; this file mounts them."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm import __version__
from klamm.cli import completion, servers
from klamm.cli.bench import bench_app
from klamm.cli.brokers import brokers_app
from klamm.cli.chaos import chaos_app
from klamm.cli.configs import configs_app
from klamm.cli.consume import consume
from klamm.cli.context import context_app
from klamm.cli.controller import controller_app, deletions
from klamm.cli.dashboard import dashboard
from klamm.cli.events import events_app
from klamm.cli.groups import groups_app
from klamm.cli.incidents import incidents_app
from klamm.cli.lake import lake_app
from klamm.cli.leaders import leaders_app
from klamm.cli.partitions import partitions_app
from klamm.cli.produce import produce
from klamm.cli.reassign import reassign_app
from klamm.cli.simulate import simulate
from klamm.cli.topics import topics_app
from klamm.cli.transactions import transactions_app
from klamm.cli.zk import zk_app

app = typer.Typer(
    name="klamm",
    help="A Kafka-compatible cluster around the ZooKeeper-based controller: run it, administer it, test it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"klamm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    context: Annotated[
        str,
        typer.Option(
            help="Cluster to talk to; see klamm context.", envvar="KLAMM_CONTEXT", autocompletion=completion.contexts
        ),
    ] = "",
) -> None:
    del version, context  # the first's callback has printed it; `output` reads the second


app.command()(servers.up)
app.command()(servers.broker)
app.command()(servers.zookeeper)
app.command()(dashboard)
app.add_typer(topics_app, name="topics")
app.add_typer(partitions_app, name="partitions")
app.add_typer(groups_app, name="groups")
app.add_typer(brokers_app, name="brokers")
app.add_typer(configs_app, name="configs")
app.add_typer(controller_app, name="controller")
app.command()(deletions)
app.add_typer(reassign_app, name="reassign")
app.add_typer(leaders_app, name="leaders")
app.add_typer(transactions_app, name="transactions")
app.command()(produce)
app.command()(consume)
app.add_typer(events_app, name="events")
app.add_typer(zk_app, name="zk")
app.add_typer(chaos_app, name="chaos")
app.add_typer(lake_app, name="lake")
app.add_typer(incidents_app, name="incidents")
app.add_typer(context_app, name="context")
app.command()(simulate)
app.add_typer(bench_app, name="bench")
