"""Which process of this machine has a TCP socket of 127.0.0.1, as /proc tells it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LOOPBACK: Final = "0100007F"
ANY: Final = "00000000"
LISTEN: Final = "0A"


def owner_of_local_port(port: int, pids: Iterable[int]) -> int | None:
    """The process among `pids` that has a connection from this local port."""
    inodes = _inodes(port, listening=False)
    return next((pid for pid in pids if inodes & _sockets(pid)), None)


def listener_on(port: int) -> int | None:
    """The process that listens on this port; None if there is none, or if it belongs to another user."""
    inodes = _inodes(port, listening=True)
    if not inodes:
        return None
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return next((pid for pid in pids if inodes & _sockets(pid)), None)


def _inodes(port: int, *, listening: bool) -> set[str]:
    local = {f"{host}:{port:04X}" for host in (LOOPBACK, ANY)}
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {row[9] for row in rows if row[1] in local and (row[3] == LISTEN) == listening} - {"0"}


def _sockets(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(descriptor.path)
            except OSError:
                continue  # closed in the meantime
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:
        pass  # it has ended, or belongs to another user
    return found
