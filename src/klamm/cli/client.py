"""The admin client of all commands: kafka-python's, with timeouts short enough for interactive use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from klamm.cli.output import clear_errors

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

REQUEST_TIMEOUT_MS = 15_000


@contextmanager
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    from kafka.admin import KafkaAdminClient

    with clear_errors(bootstrap):
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap,
            client_id="klamm-cli",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        try:
            yield client
        finally:
            client.close()
