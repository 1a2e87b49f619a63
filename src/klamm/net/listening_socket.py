"""A listening socket that exists before its server does, so that a port in use is reported at the start."""

from __future__ import annotations

import os
import socket
from typing import Final

from klamm.model.errors import ConfigError

BACKLOG: Final = 128


def listening_socket(host: str, port: int, setting: str = "") -> socket.socket:
    """Raises ConfigError, which names the setting if there is one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"{setting and f'{setting}: '}cannot listen on {host}:{port}: {reason}") from None
    return listening
