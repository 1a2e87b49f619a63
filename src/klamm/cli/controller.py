"""klamm controller: show, move or prefer the controller, print its history. klamm deletions: what each waits for."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from klamm.admin.controller_history import notes, read_events, terms
from klamm.admin.pending_deletions import waits_for
from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.event_files import EventPaths, event_files
from klamm.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    BrokerArgument,
    Json,
    ZooKeeper,
    clear_errors,
    fail,
    print_json,
    print_table,
)
from klamm.cli.zookeeper_address import zookeeper_of

T = TypeVar("T")

controller_app = typer.Typer(help="Show or move the controller, and prefer brokers for it.", no_args_is_help=True)
candidates_app = typer.Typer(
    help="List, add and remove brokers that are preferred as controller.", no_args_is_help=True
)
controller_app.add_typer(candidates_app, name="candidates")


@controller_app.command()
def show(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False) -> None:
    """Show which broker is the controller, since when, the candidates, and what is quarantined.

    Example: klamm controller show
    """
    with connected(bootstrap) as client:
        cluster = client.cluster
    controller = cluster.controller_id
    if controller < 0:
        fail("the cluster has no controller at the moment")
    address = str(cluster.brokers[controller].address) if controller in cluster.brokers else None
    shown: dict[str, Any] = {"controller": controller, "address": address, "cluster_id": cluster.cluster_id}
    from klamm.server.inspection import controller_term

    shown |= ask(controller_term(zookeeper_of(bootstrap, zookeeper)))
    if json:
        print_json(shown)
        return
    where = f" at {address}" if address else ""
    typer.echo(f"controller is broker {controller}{where}, epoch {shown['epoch']}, since {shown['since']}")
    if shown.get("candidates"):
        typer.echo(f"candidates: {', '.join(map(str, shown['candidates']))}")
    for entry in shown.get("quarantined", ()):
        typer.echo(f"quarantined: {entry['path']} ({entry['reason']})")


@controller_app.command()
def history(
    events: EventPaths = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the terms of all controllers, with their causes, from the event files of the brokers.

    Example: klamm controller history
    """
    found = [event for files in event_files(events, bootstrap) for file in files for event in _events_of(file)]
    told, noted = terms(found), notes(found)
    if json:
        print_json({"terms": [term._asdict() for term in told], "notes": [note._asdict() for note in noted]})
        return
    rows = [
        (t.epoch, "?" if t.broker is None else t.broker, _moment(t.since_ms), _moment(t.until_ms), t.why, t.ended_by)
        for t in told
    ]
    print_table(("EPOCH", "BROKER", "SINCE", "UNTIL", "WHY", "ENDED BY"), rows)
    if noted:
        typer.echo("")
        print_table(
            ("TIME", "BROKER", "EVENT", "CAUSE", "DETAIL"),
            [(_moment(n.time_ms), n.broker, n.event, n.cause, n.detail) for n in noted],
        )


@controller_app.command()
def move(
    broker: Annotated[
        int | None,
        typer.Argument(help="Broker id. The default is the first live candidate.", autocompletion=completion.brokers),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the broker has taken over.", min=0.1)] = 15.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = "",
    json: Json = False,
) -> None:
    """Make a klamm broker the controller in one step, whichever broker is controller now.

    Example: klamm controller move 4
    """
    from klamm.server.controller_requests import move_controller

    result = ask(move_controller(zookeeper_of(bootstrap, zookeeper), broker, timeout))
    if json:
        print_json(result)
        return
    if result["moved"]:
        former = "" if result["from"] is None else f" from broker {result['from']}"
        typer.echo(f"the controller moved{former} to broker {result['to']}")
    else:
        typer.echo(f"broker {result['to']} is already the controller")


@candidates_app.command("list")
def list_candidates(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False) -> None:
    """List the candidates and whether each is alive.

    Example: klamm controller candidates list
    """
    from klamm.server.inspection import candidates_report

    report = ask(candidates_report(zookeeper_of(bootstrap, zookeeper)))
    if json:
        print_json({"candidates": report})
        return
    rows = [
        (e["broker"], e.get("ignored") or ("controller" if e["controller"] else "alive" if e["alive"] else "dead"))
        for e in report
    ]
    print_table(("BROKER", "STATE"), rows, none="no broker is a candidate: any of them may become controller")


@candidates_app.command("add")
def add_candidate(
    broker: BrokerArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False
) -> None:
    """Add a candidate. After a settle time it takes over from a controller that is not a candidate.

    Example: klamm controller candidates add 4
    """
    from klamm.server import controller_requests

    added, is_alive = ask(controller_requests.add_candidate(zookeeper_of(bootstrap, zookeeper), broker))
    if json:
        print_json({"broker": broker, "added": added, "alive": is_alive})
    else:
        note = "" if is_alive else "; it is not registered, and takes over when it is there"
        typer.echo(f"broker {broker} is {'now' if added else 'already'} a candidate{note}")


@candidates_app.command("remove")
def remove_candidate(
    broker: BrokerArgument, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False
) -> None:
    """Remove a broker from the candidates.

    Example: klamm controller candidates remove 4
    """
    from klamm.server import controller_requests

    ask(controller_requests.remove_candidate(zookeeper_of(bootstrap, zookeeper), broker))
    if json:
        print_json({"broker": broker, "removed": True})
    else:
        typer.echo(f"broker {broker} is no longer a candidate")


def deletions(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, zookeeper: ZooKeeper = "", json: Json = False) -> None:
    """List the topics that are marked for deletion and what each is waiting for.

    Example: klamm deletions
    """
    from klamm.server.inspection import marked_topics

    found = ask(marked_topics(zookeeper_of(bootstrap, zookeeper)))
    report = [
        (
            marked.topic,
            marked.since,
            f"a repair of its znode: {marked.problem}"
            if marked.problem
            else waits_for(
                marked.partitions,
                found.live,
                has_controller=found.has_controller,
                quarantined=marked.quarantined,
            ),
        )
        for marked in found.topics
    ]
    if json:
        print_json({"deletions": [dict(zip(("topic", "since", "waits_for"), row, strict=True)) for row in report]})
        return
    print_table(("TOPIC", "SINCE", "WAITS FOR"), report, none="no topic is marked for deletion")


def ask(question: Coroutine[Any, Any, T]) -> T:
    """Run a question to ZooKeeper. Errors are one line on stderr."""
    import asyncio

    with clear_errors():
        return asyncio.run(question)


def _events_of(file: Path) -> list[dict[str, Any]]:
    with file.open("rb") as lines:
        return list(read_events(lines))


def _moment(time_ms: int | None) -> str:
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
