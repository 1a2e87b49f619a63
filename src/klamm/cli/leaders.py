"""klamm leaders elect: move leadership back to the preferred replicas, or hold an unclean election."""

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


leaders_app = typer.Typer(no_args_is_help=True)


@leaders_app.callback()
def _group() -> None:
    """Elect the leaders of partitions."""


@leaders_app.command()
def elect(
    election: Annotated[
        ElectionType,
        typer.Option(
            "--type", help="unclean elects any live replica of a partition that has no leader. Records may be lost."
        ),
    ],
    topic: Annotated[str, typer.Option(help="Topic of the partition.")] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Number of the partition.")] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All partitions that need an election.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect the leader of one partition (--topic and --partition), or of all that need an election (--all)."""
    if bool(topic) != (partition is not None) or bool(topic) == everywhere:
        raise typer.BadParameter("use either --topic with --partition, or --all")
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
