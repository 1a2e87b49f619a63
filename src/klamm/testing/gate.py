"""A gate in front of a listener: while open, it forwards; when shut, it cuts its connections and refuses new ones.

A broker behind a shut gate looks dead, although it lives, reaches all other processes and keeps its ZooKeeper session.
Fast fail-over must survive that. A separate thread runs the gate, so that any test can use it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from klamm.testing.relay import Relay


class Gate:
    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop) -> None:
        self._relay = relay
        self._loop = loop

    def open(self) -> None:
        self._call(self._relay.open())

    def shut(self) -> None:
        self._call(self._relay.shut())

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextmanager
def gate_before(target: int, port: int) -> Iterator[Gate]:
    """An open gate: connections to `port` reach `target`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gate", daemon=True)
    thread.start()
    gate = Gate(Relay(target, port), loop)
    try:
        gate.open()
        yield gate
        gate.shut()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
