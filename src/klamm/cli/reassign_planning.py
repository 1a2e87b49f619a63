"""Makes a plan from the load of a live cluster, and shows it: before and after per broker, and what it costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from klamm.admin.balancing import plan_file
from klamm.admin.balancing.load import Goals, PartitionLoad, Plan, PlannedBroker
from klamm.admin.balancing.planner import PlanRefused, plan
from klamm.admin.balancing.validation import violations
from klamm.cli.output import fail, print_json, print_table
from klamm.client.cluster_load import loaded_partitions
from klamm.model.wording import count, size

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient


REASONS_SHOWN: Final = 5
"""A cluster that is too small has a reason for each partition."""


def plan_from_load(client: BlockingClient, goals: Goals) -> tuple[Plan, bytes]:
    """The plan and its file. Raises PlanRefused."""
    moving = client.run(client.admin.reassignments())
    if moving:
        raise PlanRefused(f"{min(moving)} is being moved already; wait for it, or cancel it")
    brokers = [PlannedBroker(b.id, b.rack) for b in client.run(client.admin.brokers()).values()]
    loaded = client.run(loaded_partitions(client.admin))
    partitions = [PartitionLoad(*each.name, each.replicas, each.size_bytes) for each in loaded]
    made = plan(partitions, brokers, goals)
    wrong = violations(made, partitions, brokers, goals)
    assert not wrong, f"the planner broke its own rules: {wrong[:3]}"
    document = plan_file.encode(made, cluster_id=client.cluster.cluster_id or "", made_at_ms=int(time.time() * 1000))
    return made, document


def report(made: Plan, output: Path, throttle: int, json: bool) -> None:
    seconds = max(made.incoming_bytes().values(), default=0) / throttle
    if json:
        print_json(
            {
                "file": str(output) if made.changes else None,
                "partitions": len(made.changes),
                "bytes_to_copy": made.bytes_to_copy,
                "seconds_at_throttle": seconds,
                "before": [load._asdict() for load in made.before],
                "after": [load._asdict() for load in made.after],
                "reasons": made.reasons,
            }
        )
        return
    if made.changes:
        rows = [
            (b.broker, size(b.size_bytes), size(a.size_bytes), b.replicas, a.replicas, b.leaders, a.leaders)
            for b, a in zip(made.before, made.after, strict=True)
        ]
        columns = ("BROKER", "BYTES", "AFTER", "REPLICAS", "AFTER", "LEADERS", "AFTER")
        print_table(columns, rows)
        typer.echo(
            f"{count(len(made.changes), 'partition')} to change, {size(made.bytes_to_copy)} to copy, "
            f"about {seconds:.0f} s at {size(throttle)}/s into each broker"
        )
    for reason in made.reasons[:REASONS_SHOWN]:
        typer.echo(reason)
    if len(made.reasons) > REASONS_SHOWN:
        typer.echo(f"and {len(made.reasons) - REASONS_SHOWN} more of the kind; --json has all")
    if made.changes:
        typer.echo(f"written to {output}; start it with: klamm reassign execute {output}")
    else:
        typer.echo("nothing to do, no file written")


def write_plan(output: Path, document: bytes) -> None:
    try:
        output.write_bytes(document)
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}")
