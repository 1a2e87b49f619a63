"""klamm leaders elect: put the preferred replicas in charge again, or accept the loss of an unclean election."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json
from klamm.model.errors import ErrorCode

PREFERRED, UNCLEAN = 0, 1
FINE_ALREADY = ErrorCode.ELECTION_NOT_NEEDED

leaders_app = typer.Typer(help="Leaders of partitions.", no_args_is_help=True)


@leaders_app.callback()
def _group() -> None:
    """Leaders of partitions."""


@leaders_app.command()
def elect(
    topic: Annotated[str, typer.Option(help="Only this topic; without it all partitions.")] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition of the topic.")] = None,
    unclean: Annotated[bool, typer.Option("--unclean", help="Elect outside the ISR: data may be lost.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect preferred leaders (the default), or any live replica of partitions without a leader."""
    if partition is not None and not topic:
        raise typer.BadParameter("a partition needs --topic", param_hint="--partition")
    with admin(bootstrap) as client:
        wanted = None
        if topic:
            known = [entry["partition_index"] for entry in client.describe_topics([topic])[0]["partitions"]]
            wanted = {topic: known if partition is None else [partition]}
        answer = client.elect_leaders(UNCLEAN if unclean else PREFERRED, wanted, raise_errors=False)
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
