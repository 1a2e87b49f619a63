"""klamm brokers: list, describe, drain, decommission-check."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.admin.leader_drain import LeaderDrain, LedPartition, plan_leader_drain
from klamm.cli.client import connected
from klamm.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    BrokerArgument,
    Json,
    fail,
    joined,
    print_json,
    print_table,
)
from klamm.cli.progress import Progress
from klamm.model.wording import count, size

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient
    from klamm.client.cluster_view import SeenPartition

brokers_app = typer.Typer(help="List and describe brokers, and prepare them to stop or to leave.", no_args_is_help=True)
NAMED_MAX: Final = 5
"""Partitions that a sentence names."""
LOOK_AGAIN: Final = 0.5


@brokers_app.command("list")
def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the live brokers with what each leads and holds.

    Example: klamm brokers list
    """
    from klamm.client.cluster_view import seen_partitions

    with connected(bootstrap) as client:
        brokers = client.run(client.admin.brokers())
        controller = client.cluster.controller_id
        seen = client.run(seen_partitions(client.admin))
    leaders = Counter(each.leader for each in seen)
    replicas = Counter(broker for each in seen for broker in each.replicas)
    behind = Counter(broker for each in seen for broker in set(each.replicas) - set(each.isr))
    found = [
        {
            "broker": broker,
            "address": str(known.address),
            "rack": known.rack,
            "controller": broker == controller,
            "leaders": leaders[broker],
            "replicas": replicas[broker],
            "not_in_sync": behind[broker],
        }
        for broker, known in sorted(brokers.items())
    ]
    missing = sorted(set(replicas) - set(brokers))
    if json:
        print_json({"brokers": found, "missing": missing})
        return
    columns = ("BROKER", "ADDRESS", "RACK", "CONTROLLER", "LEADERS", "REPLICAS", "NOT IN SYNC")
    rows = [
        (e["broker"], e["address"], e["rack"] or "-", "yes" if e["controller"] else "", *list(e.values())[4:])
        for e in found
    ]
    print_table(columns, rows)
    for broker in missing:
        typer.echo(f"broker {broker} is down and has {count(replicas[broker], 'replica')}")


@brokers_app.command()
def describe(broker: BrokerArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Describe one broker: its address, its log directories with their sizes, and what is wrong with its replicas.

    Example: klamm brokers describe 1
    """
    from klamm.client.cluster_view import seen_partitions

    with connected(bootstrap) as client:
        known = _live(client, broker)
        seen = client.run(seen_partitions(client.admin))
        directories = [_directory(entry) for entry in client.run(client.admin.log_dirs(broker))]
    held = [each for each in seen if broker in each.replicas]
    shown: dict[str, Any] = {
        "broker": broker,
        "address": str(known.address),
        "rack": known.rack,
        "controller": client.cluster.controller_id == broker,
        "leaders": sum(each.leader == broker for each in seen),
        "replicas": len(held),
        "not_in_sync": [str(each.name) for each in held if broker not in each.isr],
        "log_dirs": directories,
    }
    if json:
        print_json(shown)
        return
    controller = ", the controller" if shown["controller"] else ""
    typer.echo(f"broker {broker} at {shown['address']}{controller}, rack {known.rack or 'not set'}")
    typer.echo(f"leads {shown['leaders']} of {count(len(held), 'replica')}, {len(shown['not_in_sync'])} not in sync")
    columns = ("DIRECTORY", "STATE", "REPLICAS", "SIZE", "FREE")
    rows = [
        (d["path"], d["error"] or "online", d["replicas"], size(d["size_bytes"]), _free(d["free_bytes"]))
        for d in directories
    ]
    print_table(columns, rows)


@brokers_app.command()
def drain(
    broker: BrokerArgument,
    plan: Annotated[
        Path | None,
        typer.Option(help="Move nothing. Plan to move all replicas away, into a file for klamm reassign execute."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the elections.", min=1)] = 60.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move all leaderships away from a broker, for example before maintenance. Its replicas stay.

    The broker goes to the end of the replica lists that it heads, so it does not become leader again by itself.

    Example: klamm brokers drain 3 --plan leave-3.json
    """
    from klamm.client.cluster_view import seen_partitions

    with connected(bootstrap) as client:
        _live(client, broker)
        if plan is not None:
            _plan_to_leave(client, broker, plan, json)
            return
        planned = _leader_drain(client.run(seen_partitions(client.admin)), broker)
        if not dry_run:
            _hand_over(client, broker, planned, timeout)
    stuck = {str(name): why for name, why in sorted(planned.stuck.items())}
    if json:
        print_json({"broker": broker, "executed": not dry_run, "moved": len(planned.elections), "stuck": stuck})
    else:
        word = "would move" if dry_run else "moved"
        typer.echo(f"{word} {count(len(planned.elections), 'leadership')} away from broker {broker}")
        for name, why in stuck.items():
            typer.echo(f"{name} stays: {why}")
    if stuck:
        raise typer.Exit(1)


@brokers_app.command("decommission-check")
def decommission_check(broker: BrokerArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Say what a broker still holds. Exit code 0 means that it can be removed for good.

    Example: klamm brokers decommission-check 3
    """
    from klamm.client.cluster_view import seen_partitions
    from klamm.client.groups import GroupAdmin

    with connected(bootstrap) as client:
        seen = client.run(seen_partitions(client.admin))
        brokers = client.run(client.admin.brokers())
        controller = client.cluster.controller_id
        groups = client.run(GroupAdmin(client.cluster).list_all())
    held = {
        "replicas": [str(each.name) for each in seen if broker in each.replicas],
        "leaderships": [str(each.name) for each in seen if each.leader == broker],
        "the only replica in sync": [str(each.name) for each in seen if each.isr == [broker]],
        "replicas on their way to it": [str(each.name) for each in seen if broker in each.adding],
        "coordinated groups": [group.name for group in groups if group.coordinator == broker],
        "the controllership": ["controller"] if controller == broker else [],
    }
    holds = {what: names for what, names in held.items() if names}
    # Coordinators and the controller move by themselves when the broker stops; data does not.
    blocking = [what for what in holds if what not in ("coordinated groups", "the controllership")]
    if json:
        print_json({"broker": broker, "alive": broker in brokers, "can_be_removed": not blocking, "holds": holds})
    else:
        typer.echo(f"broker {broker} is {'alive' if broker in brokers else 'not alive'}")
        for what, names in holds.items():
            moves = "" if what in blocking else " (moves by itself when the broker stops)"
            typer.echo(f"holds {what}: {_some(names)}{moves}")
        cure = f": klamm brokers drain {broker} --plan FILE" if blocking else ""
        typer.echo(f"it must not be removed yet{cure}" if blocking else "it can be removed")
    if blocking:
        raise typer.Exit(1)


def _live(client: BlockingClient, broker: int) -> Any:
    brokers = client.run(client.admin.brokers())
    if broker not in brokers:
        fail(f"broker {broker} is not alive; alive are {joined(sorted(brokers))}")
    return brokers[broker]


def _directory(entry: Any) -> dict[str, Any]:
    from klamm.wire.errors import error_of

    sizes = [p.partition_size for topic in entry.topics for p in topic.partitions]
    return {
        "path": entry.log_dir,
        "error": error_of(entry.error_code).name if entry.error_code else None,
        "replicas": len(sizes),
        "size_bytes": sum(sizes),
        "free_bytes": entry.usable_bytes if entry.usable_bytes >= 0 else None,
    }


def _free(free: int | None) -> str:
    return "not told" if free is None else size(free)


def _leader_drain(seen: list[SeenPartition], broker: int) -> LeaderDrain:
    moving = [str(each.name) for each in seen if broker in each.replicas and (each.adding or each.removing)]
    if moving:
        fail(f"{_some(moving)} is being moved: wait for it, or cancel it (klamm reassign status)")
    return plan_leader_drain(broker, [LedPartition(e.name, e.leader, e.replicas, e.isr) for e in seen])


def _hand_over(client: BlockingClient, broker: int, planned: LeaderDrain, timeout: float) -> None:
    """Change the order, elect, and wait until other brokers lead."""
    from klamm.client.cluster_view import seen_partitions
    from klamm.model.errors import ErrorCode

    if planned.orders:
        outcomes = client.run(client.admin.alter_reassignments(planned.orders))
        refused = [f"{name} {error.code.name}" for name, error in sorted(outcomes.items()) if error is not None]
        if refused:
            fail(f"the order of replicas was refused: {_some(refused)}")
    if not planned.elections:
        return
    deadline = time.monotonic() + timeout
    progress = Progress("leaderships", len(planned.elections))
    wanted = set(planned.elections)
    while True:
        outcomes = client.run(client.admin.elect_leaders(0, sorted(wanted)))
        fine = (None, ErrorCode.ELECTION_NOT_NEEDED)
        failures = {name: error for name, error in outcomes.items() if (error and error.code) not in fine}
        seen = client.run(seen_partitions(client.admin, {name.topic for name in wanted}))
        led = {each.name for each in seen if each.leader == broker}
        wanted &= led
        progress.at(len(planned.elections) - len(wanted), f"waiting for other brokers to lead {len(wanted)}")
        if not wanted:
            break
        if time.monotonic() > deadline:
            progress.end()
            why = {error.code.name for error in failures.values() if error is not None}
            fail(
                f"after {timeout:.0f} s broker {broker} still leads {_some(sorted(map(str, wanted)))} {joined([*why])}"
            )
        time.sleep(LOOK_AGAIN)
    progress.end()


def _plan_to_leave(client: BlockingClient, broker: int, output: Path, json: bool) -> None:
    from klamm.admin.balancing.load import Goals
    from klamm.cli.reassign import DEFAULT_THROTTLE
    from klamm.cli.reassign_planning import plan_from_load, report, write_plan

    made, document = plan_from_load(client, Goals(drained=frozenset({broker})))
    if made.changes:
        write_plan(output, document)
    report(made, output, DEFAULT_THROTTLE, json)
    staying = next((load.replicas for load in made.after if load.broker == broker), 0)
    if staying:
        fail(f"{count(staying, 'replica')} cannot leave broker {broker}")


def _some(names: list[str]) -> str:
    """
    >>> _some(["a-0", "a-1"]), _some([str(n) for n in range(9)])
    ('a-0, a-1', '0, 1, 2, 3, 4 and 4 more')
    """
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
