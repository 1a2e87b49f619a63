"""klamm incidents: a report of what happened in a cluster, from the logs of its brokers.

Exit codes: 0 done, 1 failed or a file could not be read as a whole (the report has the rest), 2 wrong usage.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.output import Json, clear_errors, fail, print_json

incidents_app = typer.Typer(help="Report what happened in a cluster, from its logs.", no_args_is_help=True)


class Engine(StrEnum):
    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@incidents_app.callback()
def _group() -> None:
    """Keeps `report` a subcommand while it is the only one."""


@incidents_app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Logs of brokers, plain or gzipped, of Apache Kafka or klamm; or directories that hold them.",
            exists=True,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the page and the tables. An older report is replaced.")],
    engine: Annotated[
        Engine, typer.Option(help="local uses the processors of this machine, auto takes Spark above 20 GB.")
    ] = Engine.AUTO,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    start: Annotated[
        str | None,
        typer.Option("--from", help="Report from this time on, such as 2026-01-31T23:59. UTC without a zone."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Report up to this time.")] = None,
    json: Json = False,
) -> None:
    """Report who was controller, which brokers were lost when, and which partitions could not be written, and why.

    Example: klamm incidents report /logs/broker-1 /logs/broker-2 --out report
    """
    begin, stop = _moment(start, "--from"), _moment(end, "--to")
    if begin is not None and stop is not None and begin >= stop:
        raise typer.BadParameter("--from is not before --to")
    with clear_errors():
        _require("bokeh", "pyarrow")
        from klamm.pipelines.incidents.report import PAGE, Options, check_out, make_report, write_report
        from klamm.pipelines.incidents.stories import summary

        check_out(out)
        made = make_report(Options(paths, out, engine.value, master, begin, stop))
        write_report(made, out)
        told = summary(made.findings)
    for problem in made.problems:
        sys.stderr.write(f"klamm: {problem}\n")
    if json:
        shown = {name: table.dicts() for name, table in made.tables.items() if name != "partition_states"}
        print_json(
            {"page": str(out / PAGE), "engine": made.engine, "summary": told, "missing": made.findings.missing} | shown
        )
    else:
        typer.echo(told)
        typer.echo(f"report: {out / PAGE}")
    if made.problems:
        raise typer.Exit(1)


def _moment(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T23:59", param_hint=option) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _require(*packages: str) -> None:
    from importlib.util import find_spec

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        fail(f"{' and '.join(missing)} is not installed: pip install 'klamm[incidents]'")
