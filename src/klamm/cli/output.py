"""Output and exit codes of all commands: text or one JSON document; 0 done, 1 refused or failed, 2 wrong usage."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, NoReturn

import orjson
import typer

from klamm.cli import completion, context_file
from klamm.model.errors import KlammError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
"""The brokers of `klamm up`. All three, because commands must work after the first of them has been killed."""
BOOTSTRAP_VARIABLE: Final = "KLAMM_BOOTSTRAP_SERVER"


def fail(message: str) -> NoReturn:
    """Print one line to stderr and exit with code 1."""
    sys.stderr.write(f"klamm: {message}\n")
    raise typer.Exit(1)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Print errors that a user can act on as one line; print a traceback only for a bug."""
    try:
        yield
    except KlammError as error:
        fail(str(error))


def bootstrap_of(ctx: typer.Context) -> str:
    """The address for a line that is still being typed. Raises ContextError."""
    typed = ctx.params.get("bootstrap")
    if typed and typed != DEFAULT_BOOTSTRAP:
        return str(typed)
    return os.environ.get(BOOTSTRAP_VARIABLE) or _of_context(ctx, "bootstrap_server") or DEFAULT_BOOTSTRAP


def _of_context(ctx: typer.Context, field: str) -> str:
    name = ctx.find_root().params.get("context") or ""
    context = context_file.chosen(name)
    return "" if context is None else str(getattr(context, field))


def _bootstrap(ctx: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """What the user gave, else the context's address."""
    source = ctx.get_parameter_source(param.name or "")
    is_given = source is not None and source.name != "DEFAULT"
    if ctx.resilient_parsing or is_given:
        return value
    with clear_errors():
        return _of_context(ctx, "bootstrap_server") or value


def _zookeeper(ctx: typer.Context, value: str) -> str:
    if ctx.resilient_parsing or value:
        return value
    with clear_errors():
        return _of_context(ctx, "zookeeper")


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it: what is lost cannot be brought back.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        help="HOST:PORT of any broker. The default is the context in use, or this machine.",
        envvar=BOOTSTRAP_VARIABLE,
        callback=_bootstrap,
    ),
]
ZooKeeper = Annotated[
    str,
    typer.Option(
        "--zookeeper",
        help="HOST:PORT or HOST:PORT/chroot. The default is the context's, or what the brokers say.",
        envvar="KLAMM_ZOOKEEPER",
        callback=_zookeeper,
    ),
]
TopicName = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=completion.topics)]
GroupName = Annotated[str, typer.Argument(help="Name of the group.", autocompletion=completion.groups)]
BrokerArgument = Annotated[int, typer.Argument(help="Broker id.", min=0, autocompletion=completion.brokers)]


def print_json(document: Any) -> None:
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode() + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, none: str = "") -> None:
    """Aligned columns without a frame, easy to read and to process with cut and awk. No cell is cut or wrapped. `none`
    is the sentence for no rows, on stderr: there is nothing to process."""
    if none and not rows:
        typer.echo(none, err=True)
        return
    table = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(columns))]
    for number, row in enumerate(table):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        typer.echo(typer.style(line, bold=True) if number == 0 else line)


def joined(numbers: Sequence[object]) -> str:
    """A list in a cell.

    >>> joined([1, 2]), joined([])
    ('1,2', '-')
    """
    return ",".join(map(str, numbers)) or "-"


def key_values(entries: Sequence[str] | None) -> dict[str, str]:
    """Options of the form key=value."""
    found = {}
    for entry in entries or ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{entry!r} is not key=value")
        found[key] = value
    return found
