"""The ZooKeeper session of this broker, kept in its log directory, so that its next process can end it.

A killed broker stays registered until its session times out, and its next process could not register before that. The
next process holds the lock of the same directory, so the earlier one has ended, and it may close that session at once.
The file is ignored in a copied directory and after a reboot or on another machine: there the lock proves nothing about
the process that wrote it. Then the broker waits for the timeout, as Kafka does.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import orjson

from klamm.model.ports import Ports
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.end_session import end_session

logger = logging.getLogger(__name__)

NAME: Final = ".klamm-session"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class SessionFile:
    """Use it only while the lock of `directory` is held."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, NAME)

    async def end_former(self, ports: Ports, connect_string: str) -> None:
        """End the session that an earlier process of this broker left behind."""
        former = read_session(self._directory)
        if former is None:
            return
        session_id, password = former
        if await end_session(ports.network, ports.clock, connect_string, session_id, password):
            logger.info("ended session 0x%x, which an earlier process of this broker left behind", session_id)
        else:
            logger.info(
                "could not end session 0x%x, which an earlier process of this broker left behind: it is over, or "
                "ZooKeeper does not answer",
                session_id,
            )
        self.forget()

    def remember(self, zk: ZooKeeperClient) -> None:
        """Write the current session. A failure only costs the next process its quick start."""
        document = orjson.dumps(
            {
                "session_id": f"{zk.session_id:x}",
                "password": zk.session_password.hex(),
                "place": place_of(self._directory),
            }
        )
        try:
            descriptor = os.open(f"{self.path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(document)
            os.replace(f"{self.path}.tmp", self.path)
        except OSError as error:
            logger.warning("cannot write %s: %s", self.path, error.strerror)

    def forget(self) -> None:
        try:
            os.unlink(self.path)
        except OSError:
            pass  # it is gone, or its disk failed


def read_session(directory: str) -> tuple[int, bytes] | None:
    """The id and password of the session of the broker with this log directory; None if they cannot be trusted."""
    try:
        document = orjson.loads(Path(directory, NAME).read_bytes())
        if document["place"] != place_of(directory):
            return None
        return int(document["session_id"], 16), bytes.fromhex(document["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no file, or a torn one


def place_of(directory: str) -> str:
    """Changes when the directory is copied, and with every boot."""
    try:
        stat = os.stat(directory)
        return f"{BOOT_ID.read_text().strip()} {stat.st_dev} {stat.st_ino}"
    except OSError as error:
        return f"unknown: {error.strerror}"
