"""Output and exit codes of all commands: text or one JSON document; 0 done, 1 refused or failed, 2 wrong usage."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import orjson
import typer

from klamm.model.errors import KlammError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Bootstrap = Annotated[
    str, typer.Option("--bootstrap-server", help="HOST:PORT of any broker.", envvar="KLAMM_BOOTSTRAP_SERVER")
]
TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def fail(message: str) -> NoReturn:
    """Print one line to stderr and exit with code 1."""
    sys.stderr.write(f"klamm: {message}\n")
    raise typer.Exit(1)


@contextmanager
def clear_errors(bootstrap: str = "") -> Iterator[None]:
    """Print errors that a user can act on as one line; print a traceback only for a bug."""
    try:
        yield
    except KlammError as error:
        fail(str(error))
    except Exception as error:
        if not bootstrap or not _is_client_error(error):
            raise
        fail(f"{describe(error)} (at {bootstrap})")


def _is_client_error(error: Exception) -> bool:
    # Imported here, because the client library would add half a second to the start of servers.
    from kafka.errors import KafkaError

    return isinstance(error, KafkaError)


def describe(error: Exception) -> str:
    name = type(error).__name__.removesuffix("Error")
    if name in {"NoBrokersAvailable", "KafkaConnection", "KafkaTimeout", "NodeNotReady"}:
        return "no broker answers: is the cluster running, and is the address right?"
    details = "; ".join(str(argument) for argument in error.args if argument)
    return f"{name}: {details}" if details else name


def print_json(document: Any) -> None:
    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns without a frame, easy to read and to process with cut and awk."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, pad_edge=False, show_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(highlight=False, soft_wrap=True).print(table)
