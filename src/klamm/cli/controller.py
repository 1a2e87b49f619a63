"""klamm controller: who is it, since when."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, clear_errors, fail, print_json

controller_app = typer.Typer(help="The active controller.", no_args_is_help=True)

ZooKeeperOption = Annotated[
    str, typer.Option("--zookeeper", help="HOST:PORT[/chroot]: adds the epoch and since when, read from ZooKeeper.")
]


@controller_app.command()
def show(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeperOption = "", json: Json = False) -> None:
    """The broker that is controller now."""
    with admin(bootstrap) as client:
        cluster = client.describe_cluster()
    controller = cluster["controller_id"]
    if controller < 0:
        fail("the cluster has no controller at the moment")
    address = next(
        (f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"] if broker["broker_id"] == controller),
        None,
    )
    shown: dict[str, Any] = {"controller": controller, "address": address, "cluster_id": cluster["cluster_id"]}
    if zookeeper:
        with clear_errors():
            shown |= asyncio.run(_term(zookeeper))
    if json:
        print_json(shown)
        return
    where = f" at {address}" if address else ""
    term = f", epoch {shown['epoch']}, since {shown['since']}" if zookeeper else ""
    typer.echo(f"controller is broker {controller}{where}{term}")


async def _term(connect: str) -> dict[str, Any]:
    from klamm.server.inspection import controller_term

    return await controller_term(connect)
