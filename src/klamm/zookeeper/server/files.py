"""The files of a journal: their names, how they are written as a whole, and how a database is read from them.

A directory holds snapshots and segments, both named by a zxid: `snapshot.<n>` is the whole state at n, `journal.<n>`
has the transactions after n. Reading loads the newest snapshot and repeats the transactions after it. An incomplete
record at the end of the last segment was never acknowledged; it is dropped, and the log says how many bytes it had. Any
other error (a checksum, a gap in the zxids) stops the start, because acknowledged writes may follow it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

from klamm.model.errors import KlammError, MarshallingError
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.transaction_records import (
    FRAME,
    Damaged,
    frame,
    pack_snapshot,
    payload_at,
    unpack_snapshot,
    unpack_transaction,
)

log = logging.getLogger(__name__)

OWN_MODE: Final = 0o600  # they hold passwords of sessions and protected data
DRAFT: Final = "draft.tmp"


class JournalDamaged(KlammError):
    """The files are damaged. One line with the file, the position and the problem."""


def snapshot_path(directory: Path, zxid: int) -> Path:
    return directory / f"snapshot.{zxid:016x}"


def segment_path(directory: Path, zxid: int) -> Path:
    return directory / f"journal.{zxid:016x}"


def zxids(directory: Path, kind: str) -> list[int]:
    """The zxids of the files of one kind, in ascending order."""
    return sorted(int(path.name.split(".")[1], 16) for path in directory.glob(f"{kind}.*"))


# --- writing ---------------------------------------------------------------------------------------------------------


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_snapshot(directory: Path, database: Database[Any]) -> None:
    """Write the whole state. It becomes visible when it is complete and on disk; then the files it replaces are
    removed."""
    draft = directory / DRAFT
    descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, OWN_MODE)
    try:
        write_all(descriptor, frame(pack_snapshot(database.zxid, database.tree, database.sessions)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(draft, snapshot_path(directory, database.zxid))
    sync_directory(directory)
    for kind, path in (("snapshot", snapshot_path), ("journal", segment_path)):
        for zxid in zxids(directory, kind):
            if zxid < database.zxid:
                os.unlink(path(directory, zxid))


# --- reading ---------------------------------------------------------------------------------------------------------


def recover(directory: Path, database: Database[Any], *, before: int | None = None) -> int:
    """Fill an empty database. Returns how many bytes of an incomplete record were dropped. `before` restricts it to
    the files older than that zxid, which are all complete."""
    wanted = [zxid for zxid in zxids(directory, "snapshot") if before is None or zxid < before]
    newest = wanted[-1] if wanted else 0
    if wanted:
        _load_snapshot(snapshot_path(directory, newest), database)
    segments = [zxid for zxid in zxids(directory, "journal") if zxid >= newest and (before is None or zxid < before)]
    dropped = 0
    for zxid in segments:
        may_end_early = before is None and zxid == segments[-1]
        dropped = _replay(segment_path(directory, zxid), database, may_end_early=may_end_early)
    return dropped


def _load_snapshot(path: Path, database: Database[Any]) -> None:
    try:
        payload = payload_at(path.read_bytes(), 0)
        if payload is None:
            raise Damaged("ends too early")
        database.zxid = unpack_snapshot(payload, database.tree, database.sessions, database.now_ms())
    except (Damaged, MarshallingError) as error:
        raise JournalDamaged(f"{path}: {error}") from error


def _replay(path: Path, database: Database[Any], *, may_end_early: bool) -> int:
    data = path.read_bytes()
    position = 0
    try:
        while position < len(data):
            payload = _whole_record(data, position)
            if payload is None:
                break
            record = unpack_transaction(payload)
            if record.zxid != database.zxid + 1:
                raise Damaged(f"zxid {record.zxid:#x} follows {database.zxid:#x}")
            database.replay(*record)
            position += FRAME.size + len(payload)
    except (Damaged, MarshallingError, KeyError, IndexError) as error:
        raise JournalDamaged(f"{path}: at byte {position}: {error}") from error
    dropped = len(data) - position
    if dropped:
        if not may_end_early:
            raise JournalDamaged(f"{path}: ends within a record at byte {position}, although other segments follow")
        log.warning("%s: dropped %d bytes of an unacknowledged write after zxid %#x", path, dropped, database.zxid)
        os.truncate(path, position)
    return dropped


def _whole_record(data: bytes, position: int) -> bytes | None:
    """As payload_at, but treats a tail of zeros, which a file system may leave after a power cut, as incomplete."""
    try:
        return payload_at(data, position)
    except Damaged:
        if not any(data[position:]):
            return None
        raise
