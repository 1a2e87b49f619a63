"""klamm zk: look at the ZooKeeper tree of any Kafka cluster, and let the doctor judge it. Nothing here writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.controller import ask
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, ZooKeeper, fail, print_json
from klamm.cli.zookeeper_address import zookeeper_of
from klamm.model.wording import count

if TYPE_CHECKING:
    from klamm.admin.doctor.finding import Finding
    from klamm.model.ports import Node

zk_app = typer.Typer(help="Look at a cluster's ZooKeeper tree and find what is wrong.", no_args_is_help=True)

SHOWN_MAX = 200
PathArgument = Annotated[str, typer.Argument(help="Path below the chroot, for example /brokers/topics.")]


@zk_app.command()
def doctor(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = "",
    all_findings: Annotated[bool, typer.Option("--all", help=f"Print more than {SHOWN_MAX} findings.")] = False,
    json: Json = False,
) -> None:
    """Say what is wrong in the tree, with evidence and a cure. Exits with 1 if anything works badly or not at all.

    Example: klamm zk doctor --zookeeper 127.0.0.1:2181
    """
    from klamm.admin.doctor.doctor import examine
    from klamm.admin.doctor.finding import Severity

    found = examine(_read(zookeeper_of(bootstrap, zookeeper)))
    if json:
        print_json({"findings": [{**finding._asdict(), "severity": finding.severity.name} for finding in found]})
    else:
        _print(found if all_findings else found[:SHOWN_MAX], len(found))
    if any(finding.severity <= Severity.ERROR for finding in found):
        raise typer.Exit(1)


@zk_app.command()
def get(
    path: PathArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False
) -> None:
    """Print the data of a znode and its Stat.

    Example: klamm zk get /controller
    """
    node = _get(zookeeper_of(bootstrap, zookeeper), path)
    text = (node.data or b"").decode("utf-8", "backslashreplace")
    if json:
        print_json({"path": path, "data": text, "stat": node.stat._asdict()})
        return
    typer.echo(text)
    for name, value in node.stat._asdict().items():
        typer.echo(f"{name}: {value}")


@zk_app.command()
def tree(
    path: PathArgument = "/", bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False
) -> None:
    """List all znodes below a path.

    Example: klamm zk tree /brokers
    """
    paths = _tree(zookeeper_of(bootstrap, zookeeper), path)
    if json:
        print_json({"paths": paths})
        return
    for found in paths:
        typer.echo(found)


def _print(shown: list[Finding], total: int) -> None:
    """One paragraph for each finding: a table of such long texts would be unreadable."""
    if not total:
        typer.echo("healthy: nothing found")
        return
    for finding in shown:
        typer.echo(typer.style(f"{finding.severity.name.lower()}: {finding.code} at {finding.path}", bold=True))
        typer.echo(f"  {finding.evidence}")
        typer.echo(f"  cure: {finding.cure}")
    more = f"; --all prints {total - len(shown)} more" if total > len(shown) else ""
    typer.echo(f"{count(total, 'finding')}{more}")


def _read(connect: str) -> Any:
    from klamm.server.inspection import zookeeper
    from klamm.zookeeper.kafka_tree_reader import read_kafka_tree

    async def read() -> Any:
        async with zookeeper(connect) as client:
            return await read_kafka_tree(client, int(time.time() * 1000))

    return ask(read())


def _get(connect: str, path: str) -> Node:
    from klamm.server.inspection import zookeeper

    async def read() -> Node | None:
        async with zookeeper(connect) as client:
            return (await client.get_many([path]))[0]

    node = ask(read())
    if node is None:
        fail(f"{path} does not exist")
    return node


def _tree(connect: str, path: str) -> list[str]:
    from klamm.server.inspection import zookeeper
    from klamm.zookeeper.client.trees import paths_below

    async def read() -> list[str]:
        async with zookeeper(connect) as client:
            return sorted(await paths_below(client, path))

    found = ask(read())
    if not found:
        fail(f"{path} does not exist")
    return found
