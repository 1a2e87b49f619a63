"""klamm events: what brokers and controllers did and why, from their state-change.json files, in order of time."""

from __future__ import annotations

import sys
import time
from collections import deque
from datetime import datetime
from itertools import chain
from typing import Annotated, Final

import orjson
import typer

from klamm.admin.event_lines import Event, Selection, merged, sentence
from klamm.cli import completion
from klamm.cli.event_files import EventPaths, Tail, event_files, read
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap
from klamm.cli.times import milliseconds

events_app = typer.Typer(help="Show what brokers and controllers did, and why.", no_args_is_help=True)

LOOK_AGAIN: Final = 0.2
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Only of this topic; may be repeated.", autocompletion=completion.topics),
]
Brokers = Annotated[
    list[int] | None,
    typer.Option("--broker", help="Only of this broker; may be repeated.", autocompletion=completion.brokers),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", help="state-change, decision, or a decision such as controller-elected; may be repeated."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@events_app.command()
def merge(
    files: EventPaths = None,
    topic: Topics = None,
    broker: Brokers = None,
    kind: Kinds = None,
    since: Annotated[str | None, typer.Option(help="Only from this time on: 2026-01-31T12:00, -90m, ...")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: JsonLines = False,
) -> None:
    """Print the events of several brokers in order of time.

    Example: klamm events merge /data/kafka-1 /data/kafka-2 --topic orders --since -1h
    """
    selection = _selection(topic, broker, kind, since)
    for event in merged([read(group) for group in event_files(files, bootstrap)]):
        if selection.takes(event):
            _print(event, json)


@events_app.command()
def tail(
    files: EventPaths = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last events come first.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")] = False,
    topic: Topics = None,
    broker: Brokers = None,
    kind: Kinds = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: JsonLines = False,
) -> None:
    """Print the last events of several brokers in order of time, and follow them.

    Example: klamm events tail --follow --kind decision
    """
    selection = _selection(topic, broker, kind, None)
    groups = event_files(files, bootstrap)
    tails = [Tail(group[-1]) for group in groups]
    histories = [chain(read(group[:-1]), newest.news()) for group, newest in zip(groups, tails, strict=True)]
    last: deque[Event] = deque(maxlen=lines)
    for event in merged(histories):
        if selection.takes(event):
            last.append(event)
    for event in last:
        _print(event, json)
    try:
        while follow:
            for event in merged([each.news() for each in tails]):
                if selection.takes(event):
                    _print(event, json)
            time.sleep(LOOK_AGAIN)
    except KeyboardInterrupt:
        pass


def _selection(
    topics: list[str] | None, brokers: list[int] | None, kinds: list[str] | None, since: str | None
) -> Selection:
    return Selection(
        frozenset(topics or ()), frozenset(brokers or ()), frozenset(kinds or ()), milliseconds(since) if since else 0
    )


def _print(event: Event, json: bool) -> None:
    if json:
        sys.stdout.write(orjson.dumps(event).decode() + "\n")
    else:
        moment = datetime.fromtimestamp(event["time_ms"] / 1000).astimezone()
        sys.stdout.write(f"{moment.isoformat(sep=' ', timespec='milliseconds')}  {sentence(event)}\n")
    sys.stdout.flush()
