"""klamm simulate: a whole cluster in virtual time, replayed from one seed."""

from __future__ import annotations

import dataclasses
import logging
from typing import Annotated, Any

import typer

from klamm.cli.output import Json, print_json


def simulate(
    seed: Annotated[int, typer.Option(help="The run follows from it entirely.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="So many runs, from --seed on.")] = 1,
    processes: Annotated[int | None, typer.Option(min=1, help="For many seeds; default: one a core.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="No further seeds after a violated one.")] = False,
    json: Json = False,
) -> None:
    """Run real controllers on our ZooKeeper with everything going wrong; print the digest of all that happened.

    A violated invariant ends its run and the command with 1: the seed, the invariant and the last events are printed.
    """
    from klamm.simulation.seeds import run_seeds

    logging.disable(logging.CRITICAL)
    verdicts = []
    for verdict in run_seeds(range(seed, seed + seeds), processes):
        verdicts.append(verdict)
        if not json:
            typer.echo(_as_text(verdict) if seeds == 1 or not verdict.holds else str(verdict))
        if fail_fast and not verdict.holds:
            break
    broken = sum(not verdict.holds for verdict in verdicts)
    if json:
        documents = [_as_document(verdict) for verdict in verdicts]
        print_json(documents[0] if seeds == 1 else {"seeds": len(verdicts), "violated": broken, "runs": documents})
    elif seeds > 1:
        typer.echo(f"{len(verdicts) - broken} of {len(verdicts)} seeds: invariants held")
    if broken:
        raise typer.Exit(1)


def _as_text(verdict: Any) -> str:
    if verdict.outcome is None:
        return "\n".join((*verdict.events, str(verdict)))
    outcome = verdict.outcome
    return (
        f"seed {outcome.seed}: {outcome.digest} ({outcome.events} events, {outcome.elections} elections, "
        f"{outcome.seconds:.0f} s, invariants held)"
    )


def _as_document(verdict: Any) -> dict[str, Any]:
    if verdict.outcome is not None:
        return {"holds": True, **dataclasses.asdict(verdict.outcome)}
    return {"holds": False, **{k: v for k, v in dataclasses.asdict(verdict).items() if k != "outcome"}}
