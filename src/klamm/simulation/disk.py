"""A disk in memory (`ports.Disk`) that does what real ones do: it forgets what was not synced, tears writes, fills up
and fails.

A file has two contents: what the process sees, and what would survive a power cut. `sync` of a file makes its bytes
durable, `sync_directory` makes the names in a directory durable: creations, renames and removals. This is what POSIX
promises, and less than most file systems do.

    disk = SimulatedDisk(clock, random.Random(seed))
    disk.cut_power()                 what was not synced is gone, or survives in part; every call fails from now on
    disk.restore_power()             the next process may start; files opened before stay dead
    disk.fail("/data/1")             every call on a path below it raises EIO, until `heal`
    disk.room = 0                    the disk is full: a write stores what fits, then raises ENOSPC
    disk.descriptors_max = 100       opening more files raises EMFILE
    disk.before = hook               hook(operation, path) runs before each call: it may cut the power, or raise
    disk.job_seconds = 0.5           how long a job of `run` takes at most, half of it before the job and half after
    disk.end_process()               kill -9: the page cache survives; every call fails until `restore_power`
    disk.after_power_cut(...)        another disk, as this one could be if its power were cut now
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Final, TypeVar

from klamm.model.ports import Buffer, Clock, DiskSpace

T = TypeVar("T")

JOB_SECONDS: Final = 0.002
VOLUME_BYTES: Final = 1 << 40
_ZEROS_CHANCE: Final = 0.25
"""How often a torn write leaves zeros: the file has its new length already, but not its new bytes, or only some."""


class _File:
    """What a name points to. Several names and open files may point to it, also when the names are gone."""

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []
        """In order: (position, bytes) of a write, or (size, None) of a truncation."""
        self.modified_ms = now_ms

    def change(self, position: int, data: bytes | None) -> None:
        _apply(self.data, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    def lose_power(self, random: Random) -> None:
        """Any number of the unsynced changes survives, from the oldest on, and perhaps a part of the next one."""
        survive = random.randint(0, len(self.unsynced))
        torn = self.unsynced[survive : survive + 1]
        del self.unsynced[survive:]
        self.sync()
        for position, data in torn:
            if data is not None:
                length, chance = random.randint(0, len(data)), random.random()
                kept = data[:length]
                if chance < _ZEROS_CHANCE:
                    kept = bytes(length)
                elif chance < 2 * _ZEROS_CHANCE:
                    kept += bytes(len(data) - length)
                _apply(self.durable, position, kept)
        self.data = bytearray(self.durable)

    def after_power_cut(self, random: Random) -> _File:
        copy = _File(self.modified_ms)
        copy.durable, copy.unsynced = bytearray(self.durable), list(self.unsynced)
        copy.lose_power(random)
        return copy


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self._durable: dict[str, _File | _Directory] = {}
        self._unsynced: list[dict[str, _File | _Directory | None]] = []

    def change(self, names: dict[str, _File | _Directory | None]) -> None:
        """One step, which a power cut leaves done or not done: a rename changes two names."""
        _link(self.names, names)
        self._unsynced.append(names)

    def sync(self) -> None:
        for names in self._unsynced:
            _link(self._durable, names)
        self._unsynced.clear()

    def lose_power(self, random: Random) -> None:
        del self._unsynced[random.randint(0, len(self._unsynced)) :]
        self.sync()
        self.names = dict(self._durable)
        for _, node in sorted(self.names.items()):
            node.lose_power(random)

    def after_power_cut(self, random: Random, unless: Callable[[str], bool] = lambda name: False) -> _Directory:
        """Without the names that `unless` leaves out."""
        copy, names = _Directory(), dict(self._durable)
        for change in self._unsynced[: random.randint(0, len(self._unsynced))]:
            _link(names, change)
        copy.change({n: node.after_power_cut(random) for n, node in sorted(names.items()) if not unless(n)})
        return copy

    def files(self) -> Iterator[_File]:
        for node in self.names.values():
            if isinstance(node, _Directory):
                yield from node.files()
            else:
                yield node


class SimulatedDisk:
    def __init__(self, clock: Clock, random: Random, *, job_seconds: float = JOB_SECONDS) -> None:
        self._clock = clock
        self._random = random
        self._root = _Directory()
        self._failing: dict[str, int] = {}
        self._locked: set[str] = set()
        self._next_turn = count(1)
        self._turns: dict[str, int] = {}
        self._life = 0
        self._descriptors = 0
        self.has_power = True
        self.job_seconds = job_seconds
        self.room: int | None = None
        """Bytes that may still be written; None means without end. Removing files does not change it."""
        self.descriptors_max: int | None = None
        self.before: Callable[[str, str], None] | None = None
        self.syncs = 0
        """Calls of `sync` and `sync_directory` so far."""

    # --- what happens to it ------------------------------------------------------------------------------------------

    def cut_power(self) -> None:
        self._root.lose_power(self._random)
        self.end_process()

    def after_power_cut(self, random: Random, path: str) -> SimulatedDisk:
        """It has the directory of `path`, with its files and with `path`, a directory too, but without its siblings."""
        head, _, last = path.rpartition("/")
        found = self._directory(head)
        others = {name for name, node in found.names.items() if isinstance(node, _Directory)} - {last}
        copy = SimulatedDisk(self._clock, random)
        copy.make_directories(head.rpartition("/")[0])
        parent, name = copy._parent(head)
        parent.change({name: found.after_power_cut(random, others.__contains__)})
        return copy

    def end_process(self) -> None:
        """What the process would still do on its way out must not reach the files."""
        self._locked.clear()
        self._life += 1
        self._descriptors = 0
        self.has_power = False

    def restore_power(self) -> None:
        self.has_power = True

    def fail(self, path: str, code: int = errno.EIO) -> None:
        self._failing[path] = code

    def heal(self, path: str) -> None:
        del self._failing[path]

    def heal_all(self) -> None:
        self._failing.clear()
        self.room = None
        self.job_seconds = JOB_SECONDS

    @property
    def is_failing(self) -> bool:
        return bool(self._failing)

    @property
    def used_bytes(self) -> int:
        return sum(len(file.data) for file in self._root.files())

    def corrupt(self, path: str, position: int, mask: int = 1) -> None:
        """Flip the bits of `mask` in one byte, behind the back of everybody, in both contents."""
        file = self._file(path)
        for data in (file.data, file.durable):
            if position < len(data):
                data[position] ^= mask

    # --- ports.Disk --------------------------------------------------------------------------------------------------

    async def run(self, job: Callable[[], T]) -> T:
        """Other tasks run before and after the job, so that whatever it read may be old when it ends."""
        life = self._life
        await asyncio.sleep(self._random.random() * self.job_seconds / 2)
        if life != self._life:
            raise OSError(errno.EIO, "the power was cut before the job began")
        result = job()
        await asyncio.sleep(self._random.random() * self.job_seconds / 2)
        return result

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.check("open", path)
        if self.descriptors_max is not None and self._descriptors >= self.descriptors_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        parent, name = self._parent(path)
        if create and name not in parent.names:
            parent.change({name: _File(self._clock.wall_ms())})
        file = self._file(path)
        self._descriptors += 1
        return SimulatedFile(self, path, file, self._life)

    def read(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._file(path).data)

    def next_turn(self) -> int:
        return next(self._next_turn)

    def write_atomically(self, path: str, data: bytes, turn: int = 0) -> None:
        if turn < self._turns.get(path, 0):
            return
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.append([data])
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))
        if turn:
            self._turns[path] = turn

    def exists(self, path: str) -> bool:
        self.check("exists", path)
        return self._find(path) is not None

    def list(self, directory: str) -> list[str]:
        self.check("list", directory)
        return sorted(self._directory(directory).names)

    def is_directory(self, path: str) -> bool:
        self.check("is_directory", path)
        return isinstance(self._find(path), _Directory)

    def make_directories(self, path: str) -> None:
        self.check("make_directories", path)
        node = self._root
        for name in _parts(path):
            if name not in node.names:
                node.change({name: _Directory()})
            found = node.names[name]
            if not isinstance(found, _Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            node = found

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        (parent, name), (other, new_name) = self._parent(source), self._parent(target)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        assert parent is other, "a rename across directories is not simulated"
        parent.change({name: None, new_name: parent.names[name]})

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self._file(path)
        parent, name = self._parent(path)
        parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        self.check("remove_tree", path)
        self._directory(path)
        parent, name = self._parent(path)
        parent.change({name: None})

    def sync_directory(self, path: str) -> None:
        self.check("sync_directory", path)
        self.syncs += 1
        self._directory(path).sync()

    def modified_ms(self, path: str) -> int:
        self.check("modified_ms", path)
        return self._file(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self.check("set_modified_ms", path)
        self._file(path).modified_ms = time_ms

    def space(self, path: str) -> DiskSpace:
        self.check("space", path)
        return DiskSpace(VOLUME_BYTES, VOLUME_BYTES if self.room is None else self.room)

    def lock(self, path: str) -> Callable[[], None]:
        self.open(path, create=True).close()
        if path in self._locked:
            raise BlockingIOError(f"{path} is locked")
        self._locked.add(path)
        return lambda: self._locked.discard(path)

    # --- for its files -----------------------------------------------------------------------------------------------

    def check(self, operation: str, path: str) -> None:
        if self.before is not None:
            self.before(operation, path)
        if not self.has_power:
            raise OSError(errno.EIO, "the power is off", path)
        for prefix, code in self._failing.items():
            if path == prefix or path.startswith(prefix.rstrip("/") + "/"):
                raise OSError(code, os.strerror(code), path)

    def write(self, path: str, file: _File, position: int, data: bytes) -> None:
        fits = data if self.room is None else data[: self.room]
        if fits:
            file.change(position, fits)
            file.modified_ms = self._clock.wall_ms()
        if self.room is not None:
            self.room -= len(fits)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def is_current(self, life: int) -> bool:
        return life == self._life

    def closed_one(self) -> None:
        self._descriptors -= 1

    # --- names -------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> _File | _Directory | None:
        node: _File | _Directory | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Directory):
                return None
            node = node.names.get(name)
        return node

    def _file(self, path: str) -> _File:
        found = self._find(path)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def _directory(self, path: str) -> _Directory:
        found = self._find(path)
        if not isinstance(found, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found

    def _parent(self, path: str) -> tuple[_Directory, str]:
        head, _, name = path.rpartition("/")
        found = self._find(head)
        if not isinstance(found, _Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found, name


class StagedBytes:
    """ports.Staged. Nothing is on the disk before the commit, which may tear like any other write."""

    def __init__(self, file: SimulatedFile, body: Buffer) -> None:
        self._file: SimulatedFile | None = file
        self._body = body
        self._is_written = False

    def write(self) -> None:
        self._is_written = True

    def commit(self, head: Buffer) -> int | None:
        file, self._file = self._file, None
        return file.append([head, self._body]) if file is not None and self._is_written else None

    def drop(self) -> None:
        self._file = None


class SimulatedFile:
    """ports.DiskFile. After a power cut every call of a file opened before fails."""

    def __init__(self, disk: SimulatedDisk, path: str, file: _File, life: int) -> None:
        self._disk = disk
        self._path = path
        self._node = file
        self._life = life
        self._closed = False
        self._staged: StagedBytes | None = None

    def size(self) -> int:
        return len(self._node.data)

    def append(self, chunks: Sequence[Buffer]) -> int:
        self.settle()
        start = len(self._node.data)
        try:
            self.pwrite(b"".join(chunks), start)
        except OSError:
            if len(self._node.data) > start:
                self.truncate(start)
            raise
        return start

    def stage(self, body: Buffer, head_bytes: int) -> StagedBytes:
        self._staged = StagedBytes(self, body)
        return self._staged

    def settle(self) -> None:
        if self._staged is not None:
            self._staged.drop()

    def pread(self, size: int, position: int) -> bytes:
        self._check("pread")
        return bytes(self._node.data[position : position + size])

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check("write")
        self._disk.write(self._path, self._node, position, bytes(data))

    def truncate(self, size: int) -> None:
        self.settle()
        self._check("truncate")
        self._node.change(size, None)

    def sync(self) -> None:
        """As in the real port, a file that was closed meanwhile is left alone: it is about to be removed."""
        if self._closed:
            return
        self._check("sync")
        self._disk.syncs += 1
        self._node.sync()

    def close(self) -> None:
        self.settle()
        if not self._closed:
            self._closed = True
            if self._disk.is_current(self._life):
                self._disk.closed_one()

    def _check(self, operation: str) -> None:
        self._disk.check(operation, self._path)
        if self._closed or not self._disk.is_current(self._life):
            raise OSError(errno.EBADF, "the file is closed", self._path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position <= len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _link(names: dict[str, _File | _Directory], change: dict[str, _File | _Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
