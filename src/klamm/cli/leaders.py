"""klamm leaders elect: put the preferred replicas in charge again, or accept the loss of an unclean election."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json
from klamm.model.errors import ErrorCode

FINE_ALREADY = ErrorCode.ELECTION_NOT_NEEDED


class ElectionType(StrEnum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"

    @property
    def on_the_wire(self) -> int:
        return list(ElectionType).index(self)


leaders_app = typer.Typer(help="Leaders of partitions.", no_args_is_help=True)


@leaders_app.callback()
def _group() -> None:
    """Leaders of partitions."""


@leaders_app.command()
def elect(
    election: Annotated[
        ElectionType,
        typer.Option("--type", help="unclean: any live replica of a partition without leader; data may be lost."),
    ],
    topic: Annotated[str, typer.Option(help="With --partition: this one alone.")] = "",
    partition: Annotated[int | None, typer.Option(min=0)] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="Every partition that needs it.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect leaders of one partition (--topic and --partition), or of all that need it (--all)."""
    if bool(topic) != (partition is not None) or bool(topic) == everywhere:
        raise typer.BadParameter("say which: --topic and --partition together, or --all")
    with admin(bootstrap) as client:
        wanted = {topic: [partition]} if topic else None
        answer = client.elect_leaders(election.on_the_wire, wanted, raise_errors=False)
    results = {
        f"{entry.topic}-{result.partition_id}": ErrorCode(result.error_code)
        for entry in answer.replica_election_results
        for result in entry.partition_result
    }
    elected = [name for name, code in results.items() if code is ErrorCode.NONE]
    refused = {name: code.name for name, code in results.items() if code not in (ErrorCode.NONE, FINE_ALREADY)}
    if json:
        print_json({"elected": elected, "refused": refused})
    else:
        typer.echo(f"elected: {len(elected)} partitions")
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason}" for name, reason in refused.items()))
