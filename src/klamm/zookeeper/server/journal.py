"""The journal of our server (`--data`): every transaction is in a file before any client receives an answer to it.

With `sync`, which `klamm zookeeper --data` uses, it is also on disk, as with ZooKeeper's default `forceSync=yes`: an
acknowledged write survives the loss of power. All transactions of one turn of the loop share one fdatasync. Without
`sync` it is in the page cache, which survives the death of the process but not of the machine. After a loss of power
the files may then be incomplete, or refuse to open.

After a failed write or sync the journal writes nothing more, so no client receives an answer, and the server stops. How
much of that write is on disk is unknown, and another attempt could put a record behind a gap. Opened again, the journal
has every acknowledged write, and perhaps some that were not acknowledged.

A segment that has grown large is closed and a new one started. A separate process turns the older files into a snapshot
(see `compaction`), so the loop is not blocked, however large the tree.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from klamm.model.errors import KlammError
from klamm.zookeeper.server import files
from klamm.zookeeper.server.child import dying_with_us
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.files import OWN_MODE, segment_path, zxids
from klamm.zookeeper.server.transaction_records import frame, pack_transaction
from klamm.zookeeper.server.tree import Effect

log = logging.getLogger(__name__)

SEGMENT_BYTES_MAX: Final = 64 << 20
"""About 400,000 transactions, which take a few seconds to repeat at the next start."""
COMPACTION: Final = "klamm.zookeeper.server.compaction"


class JournalUnusable(KlammError):
    """The directory cannot be written or is in use. One line that says why."""


class FileJournal:
    def __init__(
        self, directory: Path | str, *, sync: bool = False, segment_bytes_max: int = SEGMENT_BYTES_MAX
    ) -> None:
        self.directory = Path(directory)
        self.dropped_bytes = 0
        """Bytes of an unacknowledged record that were dropped from the end of the last segment when it was opened."""
        self._sync = sync
        self._segment_bytes_max = segment_bytes_max
        self._database: Database[Any] | None = None
        self._pending: list[bytes] = []
        self._failure: OSError | None = None
        self._lock = -1
        self._segment = -1
        self._segment_bytes = 0
        self._compaction: subprocess.Popen[bytes] | None = None

    # --- the service's verbs -----------------------------------------------------------------------------------------

    def open(self, database: Database[Any]) -> None:
        """Bring `database` to the state of the files, and prepare for appends. Raises JournalDamaged,
        JournalUnusable."""
        if self._failure is not None:
            # The server's memory is ahead of the files.
            raise JournalUnusable(f"{self.directory}: an earlier write failed: {self._failure.strerror}")
        try:
            self._open(database)
        except BlockingIOError:
            raise JournalUnusable(f"{self.directory}: in use by another server") from None
        except OSError as error:
            raise JournalUnusable(f"{self.directory}: {error.strerror}") from error

    def _open(self, database: Database[Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / "lock", os.O_CREAT | os.O_RDWR, OWN_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._database is None:  # otherwise the same server goes on, and its memory equals the files
                (self.directory / files.DRAFT).unlink(missing_ok=True)
                self.dropped_bytes = files.recover(self.directory, database)
                self._database = database
            segments, snapshots = zxids(self.directory, "journal"), zxids(self.directory, "snapshot")
            last = segments[-1] if segments else -1
            self._open_segment(last if last >= max(snapshots, default=0) else database.zxid)
        except BaseException:
            self.close()
            raise

    def append(self, zxid: int, time_ms: int, effects: Sequence[Effect]) -> None:
        self._pending.append(frame(pack_transaction(zxid, time_ms, effects)))

    def flush(self) -> None:
        """Raises OSError. After the first failure, every call fails."""
        if self._failure is not None:
            raise self._failure
        if not self._pending:
            return
        data = b"".join(self._pending)
        try:
            files.write_all(self._segment, data)
            if self._sync:
                os.fdatasync(self._segment)
        except OSError as error:
            self._failure = error
            raise
        self._pending.clear()
        self._segment_bytes += len(data)
        if self._segment_bytes > self._segment_bytes_max:
            self._begin_segment()

    def close(self) -> None:
        if self._segment >= 0:
            if self._failure is None:
                self.flush()
            os.close(self._segment)
        if self._compaction is not None:
            self._compaction.kill()  # the next start finishes what it has not done
            self._compaction.wait()
            self._compaction = None
        if self._lock >= 0:
            os.close(self._lock)
        self._segment = self._lock = -1

    # --- segments and snapshots --------------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        """Start a new segment and compact the older ones. If a compaction still runs, the next segment starts
        another."""
        assert self._database is not None
        old = self._segment
        try:
            self._open_segment(self._database.zxid)
        except OSError as error:
            # Go on with the old segment, and try again when it has grown by as much again.
            log.error("%s: cannot start a new segment: %s", self.directory, error.strerror)
            self._segment_bytes = 0
            return
        os.close(old)
        if self._compaction is not None:
            code = self._compaction.poll()
            if code is None:
                return
            if code:
                log.error("%s: compaction failed with exit code %d; the journal keeps growing", self.directory, code)
        command = [sys.executable, "-m", COMPACTION, str(self.directory), str(self._database.zxid)]
        self._compaction = subprocess.Popen(dying_with_us(command), stdin=subprocess.DEVNULL)

    def _open_segment(self, zxid: int) -> None:
        descriptor = os.open(segment_path(self.directory, zxid), os.O_CREAT | os.O_WRONLY | os.O_APPEND, OWN_MODE)
        try:
            files.sync_directory(self.directory)
        except OSError:
            os.close(descriptor)
            raise
        self._segment = descriptor
        self._segment_bytes = os.fstat(descriptor).st_size
