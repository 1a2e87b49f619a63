"""Runs the client for code without an event loop: commands, pipelines, tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from klamm.client.addresses import addresses
from klamm.client.admin import Admin
from klamm.client.cluster import DEFAULT_TIMEOUT, ClusterClient

T = TypeVar("T")


class BlockingClient:
    """A client with a loop of its own, which runs only while `run` does."""

    def __init__(self, runner: asyncio.Runner, cluster: ClusterClient) -> None:
        self._runner = runner
        self.cluster = cluster
        self.admin = Admin(cluster)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


@contextmanager
def blocking_client(
    bootstrap: str, *, client_id: str = "klamm", timeout: float = DEFAULT_TIMEOUT
) -> Iterator[BlockingClient]:
    """Connected for the length of the `with`. Raises NoBroker if no address answers."""
    cluster = ClusterClient(addresses(bootstrap), client_id=client_id, timeout=timeout)
    running = cluster.running()
    with asyncio.Runner() as runner:
        runner.run(running.__aenter__())
        try:
            yield BlockingClient(runner, cluster)
        finally:
            runner.run(running.__aexit__(None, None, None))
