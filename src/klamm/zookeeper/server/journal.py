"""The journal of our server (`--data`): every transaction is in a file before anybody is told of it.

A directory holds snapshots and segments, both named after a zxid: `snapshot.<n>` is the whole state at n, `journal.<n>`
the transactions after n. Opening loads the newest snapshot and repeats what follows; a record that the end of the last
segment cuts short was never acknowledged, and is dropped with a line in the log that says how much. Anything else that
does not add up (a checksum, a gap in the zxids) stops the start: acknowledged writes may stand behind it.

Appending ends in the page cache, which survives the death of the process but not of the machine; `sync` is for both.
After a failed write nothing is appended any more, so nobody is told anything either: a gap would be worse than silence.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from klamm.model.errors import KlammError, MarshallingError
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.records import (
    FRAME,
    Damaged,
    frame,
    pack_snapshot,
    pack_transaction,
    payload_at,
    unpack_snapshot,
    unpack_transaction,
)
from klamm.zookeeper.server.tree import Effect

log = logging.getLogger(__name__)

SEGMENT_BYTES_MAX: Final = 64 << 20
"""Then a snapshot and a new segment: some hundred milliseconds of standstill at 100,000 nodes, once in 64 MiB."""
_OWN_MODE: Final = 0o600  # passwords of sessions and protected data are in there


class JournalDamaged(KlammError):
    """The files are not as we wrote them. One line: which file, where, and what is wrong."""


class FileJournal:
    def __init__(
        self, directory: Path | str, *, sync: bool = False, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self.directory = Path(directory)
        self.dropped_bytes = 0
        """Of a record that was never acknowledged, at the end of the last segment when it was opened."""
        self._sync = sync
        self._segment_bytes_max = segment_bytes_max
        self._database: Database[Any] | None = None
        self._pending: list[bytes] = []
        self._failure: OSError | None = None
        self._lock = -1
        self._segment = -1
        self._segment_bytes = 0

    # --- the service's verbs -----------------------------------------------------------------------------------------

    def open(self, database: Database[Any]) -> None:
        """Bring `database` to the state of the files, and be ready to append. Raises JournalDamaged, OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR, _OWN_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._database is None:  # else the same server goes on, and is what the files say
                self._recover(database)
                self._database = database
            self._open_segment()
        except BaseException:
            self.close()
            raise

    def append(self, zxid: int, time_ms: int, effects: Sequence[Effect]) -> None:
        self._pending.append(frame(pack_transaction(zxid, time_ms, effects)))

    def flush(self) -> None:
        if not self._pending:
            return
        if self._failure is not None:
            raise self._failure
        data = b"".join(self._pending)
        try:
            _write_all(self._segment, data)
            if self._sync:
                os.fdatasync(self._segment)
        except OSError as error:
            self._failure = error
            raise
        self._pending.clear()
        self._segment_bytes += len(data)
        if self._segment_bytes > self._segment_bytes_max:
            self.snapshot()

    def close(self) -> None:
        if self._segment >= 0:
            if self._failure is None:
                self.flush()
            os.close(self._segment)
        if self._lock >= 0:
            os.close(self._lock)
        self._segment = self._lock = -1

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Write the whole state, begin a new segment, and only then remove what both replace."""
        assert self._database is not None
        database = self._database
        target = self.directory / _name("snapshot", database.zxid)
        draft = self.directory / "draft.tmp"
        descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, _OWN_MODE)
        try:
            _write_all(descriptor, frame(pack_snapshot(database.zxid, database.tree, database.sessions)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(draft, target)
        os.close(self._segment)
        self._open_segment()
        self._sync_directory()
        for kind in ("snapshot", "journal"):
            for zxid in self._files(kind):
                if zxid < database.zxid:
                    os.unlink(self.directory / _name(kind, zxid))

    # --- recovery ----------------------------------------------------------------------------------------------------

    def _recover(self, database: Database[Any]) -> None:
        for leftover in sorted(self.directory.glob("*.tmp")):
            leftover.unlink()
        snapshots = self._files("snapshot")
        if snapshots:
            self._load_snapshot(self.directory / _name("snapshot", snapshots[-1]), database)
        segments = [zxid for zxid in self._files("journal") if not snapshots or zxid >= snapshots[-1]]
        for zxid in segments:
            self._replay(self.directory / _name("journal", zxid), database, last=zxid == segments[-1])

    def _load_snapshot(self, path: Path, database: Database[Any]) -> None:
        try:
            payload = payload_at(path.read_bytes(), 0)
            if payload is None:
                raise Damaged("ends too early")
            database.zxid = unpack_snapshot(payload, database.tree, database.sessions, database.now_ms())
        except (Damaged, MarshallingError) as error:
            raise JournalDamaged(f"{path}: {error}") from error

    def _replay(self, path: Path, database: Database[Any], *, last: bool) -> None:
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
        if position == len(data):
            return
        if not last:
            raise JournalDamaged(f"{path}: ends within a record at byte {position}, but others follow")
        self.dropped_bytes = len(data) - position
        log.warning(
            "%s: dropped %d bytes of a write that was never acknowledged, after zxid %#x",
            path,
            self.dropped_bytes,
            database.zxid,
        )
        os.truncate(path, position)

    # --- files -------------------------------------------------------------------------------------------------------

    def _open_segment(self) -> None:
        """Go on with the last segment, or begin one: named after the zxid that precedes it."""
        assert self._database is not None
        snapshots, segments = self._files("snapshot"), self._files("journal")
        newest_snapshot = snapshots[-1] if snapshots else 0
        name = segments[-1] if segments and segments[-1] >= newest_snapshot else self._database.zxid
        path = self.directory / _name("journal", name)
        self._segment = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, _OWN_MODE)
        self._segment_bytes = os.fstat(self._segment).st_size
        self._sync_directory()

    def _files(self, kind: str) -> list[int]:
        """The zxids of the files of one kind, rising."""
        return sorted(int(path.name.split(".")[1], 16) for path in self.directory.glob(f"{kind}.*"))

    def _sync_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _name(kind: str, zxid: int) -> str:
    return f"{kind}.{zxid:016x}"


def _whole_record(data: bytes, position: int) -> bytes | None:
    """As payload_at; but a tail of zeros, which a file system may leave after a power cut, is a record cut short."""
    try:
        return payload_at(data, position)
    except Damaged:
        if not any(data[position:]):
            return None
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
