"""klamm simulate: a whole cluster in virtual time; one seed determines the whole run."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from klamm.cli.output import Json, print_json


def simulate(
    seed: Annotated[int, typer.Option(help="Seed of the first run. Equal seeds give equal runs.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with consecutive seeds.")] = 1,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes to use. Default: one per core.")] = None,
    brokers: Annotated[
        bool, typer.Option("--brokers", help="Run whole brokers, with producers and consumers.")
    ] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop after the first violation.")] = False,
    json: Json = False,
) -> None:
    """Run real controllers, or whole brokers, against simulated failures and print a digest of each run.

    If an invariant is violated, print the seed, the invariant and the last events, and exit with code 1.

    Example: klamm simulate --seed 7
    """
    from klamm.simulation.seeds import run_seeds

    logging.disable(logging.CRITICAL)
    results = []
    for result in run_seeds(range(seed, seed + seeds), processes, real=brokers):
        results.append(result)
        if not json:
            typer.echo(result.describe() if seeds == 1 or not result.holds else str(result))
        if fail_fast and not result.holds:
            break
    broken = sum(not result.holds for result in results)
    if json:
        documents = [result.document() for result in results]
        print_json(documents[0] if seeds == 1 else {"seeds": len(results), "violated": broken, "runs": documents})
    elif seeds > 1:
        typer.echo(f"{len(results) - broken} of {len(results)} seeds: invariants held")
        hours = sum(result.summary.seconds for result in results if result.summary is not None) / 3600
        cpu_minutes = sum(os.times()[:4]) / 60  # of this process and of those that it waited for
        typer.echo(f"{hours:.2f} simulated hours, {hours / cpu_minutes:.2f} per CPU minute")
    if broken:
        raise typer.Exit(1)
