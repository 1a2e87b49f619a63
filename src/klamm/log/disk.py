"""The real disk port: the files of this machine, and a small thread pool for calls that may block for long.

Everything else in this package is below the port and uses neither `os` nor threads. Pool and loop may meet on one file,
so three things are guarded here: if a file is closed while a thread syncs it, that thread closes it afterwards; two
atomic writes of one path follow each other, in the order of their turns, instead of sharing a temporary file; and a
thread that writes ahead of the end of a file stops before anything else changes that file.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final, TypeVar

from klamm.model.ports import Buffer, DiskFile, DiskSpace

T = TypeVar("T")

_IOVECS_MAX: Final = 512
_STRIPES: Final = 32
_STAGED_AT_ONCE: Final = 1 << 20
"""The loop waits for a write of so many bytes at most."""


class OpenFile:
    """One file descriptor. It remembers the size, so that an append is a single system call."""

    def __init__(self, path: str, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._guard = threading.Lock()
        self._syncing = 0
        self._closed = False
        self._staged: StagedBytes | None = None

    def size(self) -> int:
        return self._size

    def append(self, chunks: Sequence[Buffer]) -> int:
        if self._staged is not None:
            self.settle()
        start = self._size
        if len(chunks) > _IOVECS_MAX:
            chunks = [b"".join(chunks)]
        expected = sum(map(len, chunks))
        written = os.pwritev(self._fd, chunks, start)
        if written < expected:  # a full disk or a signal: the rest either fits or raises
            try:
                self.pwrite(b"".join(chunks)[written:], start + written)
            except OSError:
                self.truncate(start)
                raise
        self._size = start + expected
        return start

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def stage(self, body: Buffer, head_bytes: int) -> StagedBytes:
        self.settle()
        self._staged = StagedBytes(self, self._fd, body, self._size, head_bytes)
        return self._staged

    def settle(self) -> None:
        if self._staged is not None:
            self._staged.drop()

    def unstage(self, size: int) -> None:
        """Called by what was staged: it is over, and the file has this size."""
        self._staged, self._size = None, size

    def pwrite(self, data: Buffer, position: int) -> None:
        self.settle()
        view = memoryview(data)
        end = position + len(view)
        while view:
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written
        self._size = max(self._size, end)

    def truncate(self, size: int) -> None:
        self.settle()
        os.ftruncate(self._fd, size)
        self._size = size

    def sync(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._syncing += 1
        try:
            os.fsync(self._fd)
        finally:
            with self._guard:
                self._syncing -= 1
                last = self._closed and not self._syncing
            if last:
                os.close(self._fd)

    def close(self) -> None:
        try:
            self.settle()
        except OSError:
            pass  # the disk fails, and a recovery cuts off what is beyond the end
        with self._guard:
            if self._closed:
                return
            self._closed = True
            busy = self._syncing > 0
        if not busy:
            os.close(self._fd)


class StagedBytes:
    """Implements `ports.Staged`. The lock is free whenever the writing thread does not write."""

    def __init__(self, file: OpenFile, fd: int, body: Buffer, end: int, head_bytes: int) -> None:
        self._file = file
        self._fd = fd
        self._body = memoryview(body)
        self._end = end
        self._head_bytes = head_bytes
        self._lock = threading.Lock()
        self._is_over = False
        self._written = 0

    def write(self) -> None:
        while self._written < len(self._body):
            with self._lock:
                if self._is_over:
                    return
                some = self._body[self._written : self._written + _STAGED_AT_ONCE]
                self._written += os.pwrite(self._fd, some, self._end + self._head_bytes + self._written)

    def commit(self, head: Buffer) -> int | None:
        assert len(head) == self._head_bytes
        with self._lock:
            if self._is_over or self._written < len(self._body):
                return None
            written = os.pwrite(self._fd, head, self._end)
            if written < len(head):
                raise OSError(errno.ENOSPC, "no room for the head of a batch")
            self._is_over = True
            self._file.unstage(self._end + len(head) + len(self._body))
            return self._end

    def drop(self) -> None:
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._file.unstage(self._end)
                os.ftruncate(self._fd, self._end)


class FileDisk:
    """Implements `ports.Disk`. Close it last: `close` waits for the jobs that have started."""

    def __init__(self, workers: int = 2) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="disk")
        self._writing = [threading.Lock() for _ in range(_STRIPES)]
        self._next_turn = count(1)
        self._turns: dict[str, int] = {}
        """The turn of the last write of each path, if it had one."""

    async def run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, job)

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return OpenFile(path, create=create)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def next_turn(self) -> int:
        return next(self._next_turn)

    def write_atomically(self, path: str, data: bytes, turn: int = 0) -> None:
        temporary = path + ".tmp"
        with self._writing[hash(path) % _STRIPES]:
            if turn < self._turns.get(path, 0):
                return
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            self.sync_directory(os.path.dirname(path))
            if turn:
                self._turns[path] = turn

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def space(self, path: str) -> DiskSpace:
        volume = os.statvfs(path)
        return DiskSpace(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The JVM's FileChannel.lock takes POSIX record locks too; flock would not see them. They do not exclude a
            # second lock by the same process, so the path is remembered as well.
            if os.path.realpath(path) in _LOCKED:
                raise BlockingIOError(f"{path} is locked by this process")
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise BlockingIOError(f"{path} is locked by another process") from error
        _LOCKED.add(os.path.realpath(path))

        def release() -> None:
            _LOCKED.discard(os.path.realpath(path))
            os.close(fd)

        return release


_LOCKED: set[str] = set()
