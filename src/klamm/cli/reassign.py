"""klamm reassign: plan, execute, status, throttle, cancel. A plan is the JSON document that Kafka's own tool takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import orjson
import typer

from klamm.admin.balancing.load import Goals
from klamm.admin.reassignment_plan import PlannedMove, parse
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, joined, print_json, print_table
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.model.wording import count, duration, size

reassign_app = typer.Typer(help="Move partitions between brokers.", no_args_is_help=True)

DEFAULT_THROTTLE: Final = 50_000_000
"""Bytes per second into each broker, for the estimate of a plan's time."""
NOTHING_MOVES: Final = "no partition is being moved"
PLAN_FORM = '{"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
Plan = Annotated[Path, typer.Argument(help=f"File with the plan, as Kafka's own tool takes it: {PLAN_FORM}")]


@reassign_app.command("plan")
def make_plan(
    output: Annotated[Path, typer.Argument(help="File for the plan. An existing one is replaced.")],
    drain: Annotated[list[int] | None, typer.Option(help="Broker that shall keep no replica; repeatable.")] = None,
    replication_factor: Annotated[int | None, typer.Option(help="Replicas of every partition.", min=1)] = None,
    tolerance: Annotated[float, typer.Option(help="How far bytes may stay from even, as a part.", min=0.001)] = 0.02,
    throttle: Annotated[int, typer.Option(help="Bytes per second and broker, for the estimate of time.", min=1)] = (
        DEFAULT_THROTTLE
    ),
    force: Annotated[bool, typer.Option(help="Balance even if every broker is within 5 % of even.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Plan even bytes, replicas and leaders from the load of now, with few bytes to copy. Nothing is moved yet.

    Example: klamm reassign plan even.json --drain 3
    """
    from klamm.cli.reassign_planning import plan_from_load, report, write_plan

    goals = Goals(
        tolerance=tolerance,
        drained=frozenset(drain or ()),
        replication_factor=replication_factor,
        is_forced=force,
    )
    with connected(bootstrap) as client:
        made, document = plan_from_load(client, goals)
    if made.changes:
        write_plan(output, document)
    report(made, output, throttle, json)


@reassign_app.command()
def execute(
    plan: Plan,
    throttle: Annotated[
        int | None, typer.Option(help="Bytes per second that each broker may send and receive for the moves.", min=1)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end, with progress, and remove the throttle. Ctrl-C leaves.")
    ] = False,
    ignore_space: Annotated[
        bool, typer.Option("--ignore-space", help="Start even if a directory would run out of space.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Start all moves of a plan, or none if any is impossible. `status` shows the progress.

    A plan of `klamm reassign plan` is refused if it was edited, or if the cluster has changed since. A plan is also
    refused if a broker tells that it has too little space.

    Example: klamm reassign execute even.json --throttle 50000000 --wait
    """
    from klamm.cli.reassign_execution import start, wait_until_moved

    moves = _read(plan)
    with connected(bootstrap) as client:
        started = start(client, plan.read_bytes(), moves, throttle, ignore_space=ignore_space)
        if wait:
            wait_until_moved(client)
    if json:
        print_json({"started": started, "refused": {}, "throttle": throttle, "finished": wait})
    else:
        typer.echo(f"started: {started} of {len(moves)} partitions{', and moved' if wait else ''}")
        if throttle is not None and not wait:
            typer.echo("the throttle stays until: klamm reassign throttle --remove")


@reassign_app.command()
def cancel(plan: Plan, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Cancel the moves of a plan that are still running. Partitions go back to where they were. Throttles are removed
    when nothing else moves.

    Example: klamm reassign cancel even.json
    """
    from klamm.cli.reassign_execution import alter, clear_throttles

    moves = _read(plan)
    with connected(bootstrap) as client:
        outcomes = alter(client, {TopicPartition(move.topic, move.partition): None for move in moves})
        if not client.run(client.admin.reassignments()):
            clear_throttles(client)
    failed = {str(name): error.code for name, error in sorted(outcomes.items()) if error is not None}
    ended = [name for name, code in failed.items() if code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    refused = {name: code.name for name, code in failed.items() if name not in set(ended)}
    cancelled = len(outcomes) - len(failed)
    if json:
        print_json({"cancelled": cancelled, "not_moving": ended, "refused": refused})
    elif len(ended) < len(outcomes):
        others = f"; {len(ended)} not being moved" if ended else ""
        typer.echo(f"cancelled: {cancelled} of {count(len(outcomes), 'partition')}{others}")
    if len(ended) == len(outcomes):
        fail("nothing to cancel: no partition of the plan is being moved")
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason}" for name, reason in refused.items()))


@reassign_app.command()
def status(
    interval: Annotated[float, typer.Option(help="Seconds between two looks, for the rate.", min=0.1)] = 1.0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end, with progress, and remove throttles.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the partitions that are being moved, with bytes, rate and time left, and the throttles.

    Example: klamm reassign status --wait
    """
    from klamm.cli.reassign_execution import look_twice, wait_until_moved

    with connected(bootstrap) as client:
        if wait:
            wait_until_moved(client)
        moving, rate, throttles = look_twice(client, interval)
    if json:
        entries = [
            {
                "topic": each.name.topic,
                "partition": each.name.partition,
                "replicas": each.replicas,
                "adding_replicas": each.adding,
                "removing_replicas": each.removing,
                "copied_bytes": progress.copied_bytes,
                "total_bytes": progress.total_bytes,
            }
            for each, progress in moving
        ]
        print_json(
            {
                "reassignments": entries,
                "bytes_per_second": rate.bytes_per_second,
                "seconds_left": rate.seconds_left,
                "throttled_topics": throttles[0],
                "throttles": throttles[1],
            }
        )
        return
    rows = [
        (
            *each.name,
            *map(joined, (each.replicas, each.adding, each.removing)),
            f"{size(progress.copied_bytes)} of {size(progress.total_bytes)}" if progress.is_known else "leader is down",
        )
        for each, progress in moving
    ]
    print_table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "COPIED"), rows, none=NOTHING_MOVES)
    if moving:
        left = "no end in sight" if rate.seconds_left is None else f"{duration(rate.seconds_left)} left"
        typer.echo(f"{count(len(moving), 'partition')} on the move, {size(rate.bytes_per_second)}/s, {left}")
    if throttles[1]:
        rates = ", ".join(f"broker {broker} {size(number)}/s" for broker, number in throttles[1].items())
        cure = "" if moving else "; nothing moves any more: klamm reassign throttle --remove"
        typer.echo(f"throttled: {rates}{cure}")


@reassign_app.command()
def throttle(
    rate: Annotated[int | None, typer.Argument(help="Bytes per second and broker.", min=1)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all throttles.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change the throttle of running moves, or remove it.

    Example: klamm reassign throttle 100000000
    """
    from klamm.cli.reassign_execution import change_throttle, clear_throttles

    if (rate is None) != remove:
        raise typer.BadParameter("use either a rate or --remove")
    with connected(bootstrap) as client:
        brokers = clear_throttles(client) if rate is None else change_throttle(client, rate)
    if json:
        print_json({"rate": rate, "brokers": brokers})
    elif rate is None:
        typer.echo(f"removed the throttle of {count(len(brokers), 'broker')}")
    else:
        typer.echo(f"brokers {joined(brokers)} move at most {size(rate)}/s")


def _read(plan: Path) -> list[PlannedMove]:
    try:
        return parse(orjson.loads(plan.read_bytes()))
    except OSError as error:
        fail(f"cannot read {plan}: {error.strerror}")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        fail(f"{plan} is not a plan: {type(error).__name__} {error}; the form is {PLAN_FORM}")
