"""klamm lake: ingest topics into Delta tables exactly once, and audit the result.

PySpark is imported only when a command runs, so the commands exist without it and say what to install.
Exit codes: 0 done or clean, 1 failed or with findings, 2 wrong usage.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TypeVar

import typer

lake_app = typer.Typer(
    name="lake",
    help="Ingest topics into a Delta lake with Spark, exactly once, and audit the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_T = TypeVar("_T")


def _parse_topics(text: str) -> list[str]:
    topics = [topic.strip() for topic in text.split(",")]
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise typer.BadParameter(f"{topic!r} is not a topic name", param_hint="--topics")
    if len(set(topics)) < len(topics):
        raise typer.BadParameter("a topic is listed twice", param_hint="--topics")
    return topics


def _parse_trigger(text: str) -> float | None:
    if text == "available-now":
        return None
    match = _SECONDS.fullmatch(text)
    if not match or float(match.group(1)) <= 0:
        raise typer.BadParameter(f"{text!r}: use available-now, or seconds such as 10s", param_hint="--trigger")
    return float(match.group(1))


def _parse_bootstrap(text: str) -> str:
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--bootstrap-server")
    return text


def _parse_lake(text: str) -> Path:
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "file":
        raise typer.BadParameter(f"{scheme}:// is not supported: use a local or mounted directory", param_hint="--lake")
    return Path(rest if separator else text).absolute()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through the `finally` blocks, which stop the JVM. A running batch is committed as a whole or not at all."""
    raise SystemExit(128 + number)


def _run(job: Callable[[], _T]) -> _T:
    """Run the job; print an expected failure as one line."""
    from klamm.pipelines.lake_state import LakeError

    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return job()
    except LakeError as e:
        print(f"klamm: {' '.join(str(e).split())}", file=sys.stderr)
        raise typer.Exit(1) from e
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@lake_app.command()
def ingest(
    bootstrap_server: Annotated[str, typer.Option(help="HOST:PORT of a broker.")],
    topics: Annotated[str, typer.Option(help="One topic, or several separated by commas.")],
    lake: Annotated[
        str,
        typer.Option(help="Directory of the lake. The table of a topic is in the subdirectory with the topic's name."),
    ],
    trigger: Annotated[
        str,
        typer.Option(help="available-now ingests what is there and exits. 10s keeps running, with a batch every 10 s."),
    ] = "available-now",
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    max_offsets_per_trigger: Annotated[
        int, typer.Option(min=1, help="Largest number of offsets in one batch.")
    ] = 1_000_000,
    name: Annotated[str, typer.Option(help="Name of the ingest. A table belongs to one ingest.")] = "main",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Ingest topics into Delta tables, exactly once. You can kill it at any moment and start it again."""
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise typer.BadParameter(f"{name!r}: use letters, digits, dots, dashes and underscores", param_hint="--name")
    names, interval, servers = _parse_topics(topics), _parse_trigger(trigger), _parse_bootstrap(bootstrap_server)
    directory = _parse_lake(lake)

    from klamm.pipelines.ingest import IngestOptions, run_ingest

    options = IngestOptions(
        bootstrap_server=servers,
        topics=names,
        lake=directory,
        interval_seconds=interval,
        master=master,
        max_offsets_per_trigger=max_offsets_per_trigger,
        name=name,
    )
    reports = _run(lambda: run_ingest(options))
    if as_json:
        print(json.dumps({"topics": [report.fields() for report in reports]}))
    else:
        for report in reports:
            print(report.line())


@lake_app.command()
def audit(
    lake: Annotated[str, typer.Option(help="Directory of the lake.")],
    topics: Annotated[str, typer.Option(help="One topic, or several separated by commas.")],
    bootstrap_server: Annotated[
        str | None, typer.Option(help="HOST:PORT of a broker, to find out why offsets are missing.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check that each offset is in the table exactly once, or is missing for a known reason. Exit 1 if not."""
    names, directory = _parse_topics(topics), _parse_lake(lake)
    servers = _parse_bootstrap(bootstrap_server) if bootstrap_server else None

    from klamm.pipelines.audit_job import audit_topics

    reports = _run(lambda: audit_topics(directory, names, servers, master))
    if as_json:
        print(json.dumps({"topics": [report.fields() for report in reports]}))
    else:
        for report in reports:
            print("\n".join(report.lines()))
    if not all(report.is_clean for report in reports):
        raise typer.Exit(1)
