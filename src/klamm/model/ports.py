"""The five ports: clock, network, disk, ZooKeeper, randomness (which is `random.Random`), and the sink for events.

Below them no `time`, `random`, `uuid4`, `os.urandom`, thread or uvloop (design D16): a simulation hands in its own and
runs the real code in one thread from one seed. Waiting is done by the event loop (`asyncio.sleep`, `asyncio.timeout`),
whose time a simulation owns too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar, overload

from klamm.model.errors import ZooKeeperError
from klamm.model.events import EventRecord

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since 1970: for timestamps that people and other systems read. May jump."""

    def monotonic(self) -> float:
        """Seconds that only grow, the event loop's time: for every duration and deadline."""


# --- network ---------------------------------------------------------------------------------------------------------


class Listening(Protocol):
    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting. Connections that exist are their protocols' business."""

    async def wait_closed(self) -> None: ...


ProtocolFactory = Callable[[], asyncio.Protocol]


class Network(Protocol):
    """Streams between hosts, in asyncio's own transport/protocol terms: the fastest it has, and easy to imitate."""

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        """Raises OSError: ConnectionRefusedError only when the other side actively refused (design D11)."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        """Port 0 takes a free one. Raises OSError."""


# --- disk ------------------------------------------------------------------------------------------------------------


class DiskFile(Protocol):
    """An open file. Every method may raise OSError, upon which the log that owns it takes no further appends."""

    def size(self) -> int: ...

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Write all at the end in one go; returns the file position of the first byte."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files, and the small thread pool for whatever may block long (fsync, recovery, bulk creation and deletion).

    Appends and reads of hot data are done in the loop: they end in the page cache, and a hop to a thread would cost
    more than they do.
    """

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` off the loop. Only for work on files that nobody in the loop touches meanwhile."""

    def open(self, path: str, *, create: bool = False) -> DiskFile: ...

    def read(self, path: str) -> bytes: ...

    def write_atomically(self, path: str, data: bytes) -> None:
        """`.tmp`, fsync, rename, fsync of the directory: after a crash the old content or the new, never a mix."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names, sorted: nothing may depend on the order a file system happens to give."""

    def is_directory(self, path: str) -> bool: ...

    def make_directories(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, time_ms: int) -> None: ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take an exclusive lock on `path` (created if absent) or raise BlockingIOError; returns the release."""


# --- ZooKeeper -------------------------------------------------------------------------------------------------------


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Acl(NamedTuple):
    perms: int
    scheme: str
    id: str


OPEN_ACL: tuple[Acl, ...] = (Acl(31, "world", "anyone"),)


class Node(NamedTuple):
    """What a read returns: data and Stat of one moment."""

    data: bytes | None
    stat: Stat


class Contents(NamedTuple):
    """What a bulk read found, in columns: a controller reads 100,000 nodes of which it needs these two."""

    data: list[bytes | None]
    versions: list[int]
    """NO_NODE_VERSION where there is no node, beside data that is None."""


NO_NODE_VERSION: Final = -1


class CreateMode(IntEnum):
    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3


class WatchKind(IntEnum):
    """Event types as on the wire."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WatchEvent(NamedTuple):
    kind: WatchKind
    path: str


Watcher = Callable[[WatchEvent], None]
"""Called in the loop, must not block: it enqueues. One-shot, like ZooKeeper's own watches: the handler reads again."""


class Create(NamedTuple):
    path: str
    data: bytes | None = None
    mode: CreateMode = CreateMode.PERSISTENT
    acl: tuple[Acl, ...] = OPEN_ACL


class Set(NamedTuple):
    path: str
    data: bytes | None
    version: int = -1


class Delete(NamedTuple):
    path: str
    version: int = -1


class Check(NamedTuple):
    path: str
    version: int


Op = Create | Set | Delete | Check


class Sets(Sequence[Set]):
    """Many versioned Sets in columns: read as a sequence of Set, written without making one of each. The version after
    a successful one is the next, so the result may be None instead of its Stat."""

    __slots__ = ("data", "paths", "versions")

    def __init__(self, paths: Sequence[str], data: Sequence[bytes], versions: Sequence[int]) -> None:
        assert len(paths) == len(data) == len(versions)
        self.paths = paths
        self.data = data
        self.versions = versions

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Set: ...

    @overload
    def __getitem__(self, index: slice) -> Sets: ...

    def __getitem__(self, index: int | slice) -> Set | Sets:
        if isinstance(index, slice):
            return Sets(self.paths[index], self.data[index], self.versions[index])
        return Set(self.paths[index], self.data[index], self.versions[index])


OpResult = str | Stat | None | ZooKeeperError
"""Of a Create its path, of a Set its Stat (in `Sets` it may be None), of Delete and Check None; in a failed multi an
error for each operation: RuntimeInconsistency for those that were not the culprit."""


class Fence(NamedTuple):
    """A version check that every multi of a bulk write carries: /controller_epoch as our own election left it."""

    path: str
    version: int


class SessionListener(Protocol):
    """The owner of a session acts at these moments, in this order; the client waits for each to return."""

    async def before_new_session(self) -> None:
        """The session expired. Nothing queued under it may act under the next, so empty the queue here."""

    async def after_new_session(self) -> None:
        """A new session is there: register the broker again, then stand for election."""

    async def on_auth_failure(self) -> None: ...


class ZooKeeper(Protocol):
    """One session. Paths are relative to the chroot. A lost connection raises ConnectionLoss, an expired session
    SessionExpired; both mean that what was in flight is of unknown outcome."""

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int: ...

    def silence(self) -> float:
        """Seconds since ZooKeeper last answered. At 2/3 of the session timeout a leader stops acknowledging and a
        controller stops acting, long before anybody else can take over."""

    def add_session_listener(self, listener: SessionListener) -> None: ...

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: tuple[Acl, ...] = OPEN_ACL,
    ) -> tuple[str, Stat]: ...

    async def ensure_path(self, path: str) -> None:
        """Create the persistent node and its missing parents, with null data."""

    async def delete(self, path: str, version: int = -1) -> None: ...

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None: ...

    async def get(self, path: str, watch: Watcher | None = None) -> Node: ...

    async def set(self, path: str, data: bytes | None, version: int = -1) -> Stat: ...

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]: ...

    async def sync(self, path: str) -> None: ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """One transaction. Never raises for a failed operation: the results say which one failed and why."""

    # Bulk: split below jute.maxbuffer, bounded in flight. Results in the order of the arguments.

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """None where there is no node. Atomic per batch of the wire, not over all."""

    async def read_many(self, paths: Sequence[str]) -> Contents:
        """As get_many, in columns and without the rest of each Stat."""

    async def get_many_and_watch(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        """As get_many, with a data watch on what exists and an exists watch on what does not; no change is missed."""

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]: ...

    async def write_many(self, ops: Sequence[Op], fence: Fence | None = None) -> list[OpResult]:
        """Each multi of the split carries the fence. Raises BadVersion with the fence's path when the fence fails:
        nothing of that multi or a later one was applied. A conflict inside fails its whole multi, and the results
        say so per operation; the caller reads again and decides again (design D2)."""


class EventSink(Protocol):
    def emit(self, records: Iterable[EventRecord]) -> None:
        """Take over the records; formatting and writing happen later and elsewhere. Never blocks, never raises."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The world as one value. ZooKeeper and the event sink are not in it: each process opens its own."""

    clock: Clock
    network: Network
    disk: Disk
    random: Random
