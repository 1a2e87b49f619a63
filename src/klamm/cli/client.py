"""The client of all commands, connected for the length of a `with`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from klamm.cli.output import clear_errors

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient


@contextmanager
def connected(bootstrap: str) -> Iterator[BlockingClient]:
    """Errors are one line on stderr."""
    from klamm.client.blocking import blocking_client

    with clear_errors(), blocking_client(bootstrap, client_id="klamm-cli") as client:
        yield client
