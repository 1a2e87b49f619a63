"""Byte code for the processes that a benchmark starts, as an installed klamm has it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MODULES: Final = (
    "klamm.cli.main",
    "klamm.server.run_broker",
    "klamm.server.run_zookeeper",
    "klamm.server.run_fork_server",
)
"""What servers import."""


@contextmanager
def bytecode_at_hand() -> Iterator[None]:
    """Let processes start with compiled byte code, whatever the environment says."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="klamm-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        try:
            subprocess.run([sys.executable, "-c", f"import {', '.join(MODULES)}"], check=True)
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
