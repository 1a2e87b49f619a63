"""klamm simulate: a whole cluster in virtual time, replayed from one seed."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from klamm.cli.output import Json, clear_errors, fail, print_json


def simulate(
    seed: Annotated[int, typer.Option(help="The run follows from it entirely.")] = 1,
    nodes: Annotated[int, typer.Option(min=1)] = 3,
    crashes: Annotated[int, typer.Option(min=0, help="Nodes that die by kill -9.")] = 4,
    seconds: Annotated[float, typer.Option(min=20, help="Virtual seconds of trouble.")] = 60.0,
    json: Json = False,
) -> None:
    """Run real controllers on our ZooKeeper with faults; print the hash of all that happened."""
    from klamm.simulation.cluster import Scenario
    from klamm.simulation.cluster import simulate as run

    with clear_errors():
        outcome = run(Scenario(seed=seed, nodes=nodes, crashes=crashes, seconds=seconds))
    if json:
        print_json(dataclasses.asdict(outcome))
    else:
        typer.echo(
            f"seed {outcome.seed}: {outcome.trace_hash} ({outcome.events} events, {outcome.elections} elections, "
            f"{outcome.crashes} crashes, {outcome.expiries} expiries, invariants held)"
        )
    if not outcome.healed:
        fail(f"seed {outcome.seed}: the cluster did not heal")
