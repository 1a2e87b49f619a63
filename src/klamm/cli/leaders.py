"""klamm leaders elect: move leadership back to the preferred replicas, or hold an unclean election."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.model.wording import count

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
    topic: Annotated[str, typer.Option(help="Topic of the partition.", autocompletion=completion.topics)] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Number of the partition.")] = None,
    everywhere: Annotated[bool, typer.Option("--all", help="All partitions that need an election.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect the leader of one partition (--topic and --partition), or of all that need an election (--all).

    Example: klamm leaders elect --type preferred --all
    """
    if bool(topic) != (partition is not None) or bool(topic) == everywhere:
        raise typer.BadParameter("use either --topic with --partition, or --all")
    wanted = None if partition is None else [TopicPartition(topic, partition)]
    with connected(bootstrap) as client:
        outcomes = client.run(client.admin.elect_leaders(election.on_the_wire, wanted))
    elected = [str(name) for name, error in outcomes.items() if error is None]
    refused = {
        str(name): error.code.name
        for name, error in outcomes.items()
        if error is not None and error.code is not FINE_ALREADY
    }
    if json:
        print_json({"elected": elected, "refused": refused})
    else:
        typer.echo(f"elected: {count(len(elected), 'partition')}{'' if elected else _why_none(election)}")
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason}" for name, reason in refused.items()))


def _why_none(election: ElectionType) -> str:
    """Why an election that no broker refused has nothing to do."""
    if election is ElectionType.UNCLEAN:
        return ", because every partition has a leader"
    return ", because every preferred replica leads already"
