"""`python -m klamm.zookeeper.server.compaction DIRECTORY ZXID` turns the older files of a journal into one snapshot.

The server has started a new segment at that zxid and goes on. This process reads the older files, which no longer
change, writes their state as a snapshot and removes them. If it is killed at any moment, the journal still opens.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from klamm.model.errors import KlammError
from klamm.zookeeper.server import files
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.sessions import SessionTable


class _NoClock:
    """Sessions are only copied, so no time passes."""

    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def instant(self) -> float:
        return 0.0


def compact(directory: Path, zxid: int) -> None:
    """Raises JournalDamaged and OSError."""
    sessions: SessionTable[Any] = SessionTable(tick_ms=1, timeout_ms_min=1, timeout_ms_max=1, random=random.Random(0))
    database: Database[Any] = Database(_NoClock(), sessions, lambda transaction, session_id: None)
    files.recover(directory, database, before=zxid)
    if database.zxid != zxid:
        raise files.JournalDamaged(f"{directory}: the segments before {zxid:#x} end at {database.zxid:#x}")
    files.write_snapshot(directory, database)


def main(directory: str, zxid: str) -> int:
    os.nice(10)  # the server has priority
    try:
        compact(Path(directory), int(zxid))
    except (KlammError, OSError) as error:
        print(f"compaction of {directory}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
