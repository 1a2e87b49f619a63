"""The five ports: clock, network, disk, ZooKeeper and randomness (`random.Random`); and the sink for events.

Code below them uses no `time`, `random`, `uuid4`, `os.urandom`, thread or uvloop (design D16), so a simulation can pass
its own ports and run the real code in one thread from one seed. Code waits with the event loop (`asyncio.sleep`,
`asyncio.timeout`), whose time the simulation controls too.
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
        """Milliseconds since 1970, for timestamps that people and other systems read. It may jump."""

    def monotonic(self) -> float:
        """The event loop's time in seconds, which never goes back, for deadlines and for durations with waits. uvloop
        counts whole milliseconds and looks at the clock once in a turn."""

    def instant(self) -> float:
        """The time in seconds at this moment, in full resolution, for durations of work in one turn of the loop."""


# --- network ---------------------------------------------------------------------------------------------------------


class Listening(Protocol):
    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting. Existing connections stay open."""

    async def wait_closed(self) -> None: ...


ProtocolFactory = Callable[[], asyncio.Protocol]


class Network(Protocol):
    """Streams between hosts, as asyncio's transports and protocols, which are fast and easy to simulate."""

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        """Raises OSError: ConnectionRefusedError only if the other side actively refused (design D11)."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        """Port 0 picks a free port. Raises OSError."""


# --- disk ------------------------------------------------------------------------------------------------------------


class Staged(Protocol):
    """Bytes that a job of the pool writes beyond the end of a file, while the loop goes on. Any other change of the
    file, also its end, drops them."""

    def write(self) -> None:
        """In the pool. Ends early if they are dropped. Raises OSError."""

    def commit(self, head: Buffer) -> int | None:
        """Writes `head` at the end of the file and makes the staged bytes, which begin after it, a part of the file.
        Returns the position of the head; None if they were dropped. Raises OSError, then nothing was appended."""

    def drop(self) -> None:
        """Does nothing if they are committed or dropped already."""


class DiskFile(Protocol):
    """An open file. Every method may raise OSError."""

    def size(self) -> int: ...

    def append(self, chunks: Sequence[Buffer]) -> int:
        """Write all chunks at the end in one call. Returns the file position of the first byte; if it raises, nothing
        was appended."""

    def stage(self, body: Buffer, head_bytes: int) -> Staged:
        """For an append that is so large that the loop must not do it. One at a time; a new one drops the last."""

    def settle(self) -> None:
        """Drop what is staged: the file stays as it is from now on."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, or fewer at the end of the file."""

    def pwrite(self, data: Buffer, position: int) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class DiskSpace(NamedTuple):
    """Bytes of the volume that holds a directory."""

    total: int
    usable: int
    """Free for this process, without what is reserved for others."""


class Disk(Protocol):
    """Files, and a small thread pool for work that may block (fsync, recovery, bulk creation and deletion).

    Appends and reads of recent data run in the loop: they only touch the page cache, and switching to a thread would
    cost more than they do.
    """

    async def run(self, job: Callable[[], T]) -> T:
        """Run `job` in the thread pool. Only for work on files that the loop does not touch at the same time."""

    def open(self, path: str, *, create: bool = False) -> DiskFile: ...

    def read(self, path: str) -> bytes: ...

    def next_turn(self) -> int:
        """For `write_atomically`: larger than all before."""

    def write_atomically(self, path: str, data: bytes, turn: int = 0) -> None:
        """Write a `.tmp` file, sync and rename it, sync the directory. A crash leaves the old content or the new one.

        Jobs of the pool may overtake each other: a write does nothing if one with a later turn came before it."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """The names, sorted, because nothing may depend on the order of the file system."""

    def is_directory(self, path: str) -> bool: ...

    def make_directories(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, time_ms: int) -> None: ...

    def space(self, path: str) -> DiskSpace:
        """May block as long as the file system does, so it belongs in the pool."""

    def lock(self, path: str) -> Callable[[], None]:
        """Lock `path` exclusively (created if absent), or raise BlockingIOError. Returns a function that unlocks it."""


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
    """The result of a read: data and Stat of the same moment."""

    data: bytes | None
    stat: Stat


class Contents(NamedTuple):
    """The result of a bulk read, in columns: a controller reads 100,000 nodes and needs only data and version."""

    data: list[bytes | None]
    versions: list[int]
    """NO_NODE_VERSION, with data None, where the node does not exist."""


NO_NODE_VERSION: Final = -1


class CreateMode(IntEnum):
    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3


class WatchKind(IntEnum):
    """The event types of the wire."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WatchEvent(NamedTuple):
    kind: WatchKind
    path: str


Watcher = Callable[[WatchEvent], None]
"""Called in the loop, so it must not block. Called once, like ZooKeeper's own watches: read again to watch again."""


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
    """Many versioned Sets in columns. It reads as a sequence of Set, but writing it creates no Set objects. A
    successful Set raises the version by one, so its result may be None instead of the Stat."""

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
"""The path for a Create, the Stat for a Set (in `Sets` it may be None), None for Delete and Check. In a failed multi
every operation has an error: the failed one its own, the others RuntimeInconsistency."""


class Fence(NamedTuple):
    """A version check in every multi of a bulk write: /controller_epoch with the version of this controller's
    election."""

    path: str
    version: int


class SessionListener(Protocol):
    """The client calls these methods of a session's owner in this order, and waits for each to return."""

    async def before_new_session(self) -> None:
        """The session has expired. Clear the queue: nothing queued under this session may act under the next."""

    async def after_new_session(self) -> None:
        """There is a new session. Register the broker again, then stand for election."""

    async def on_auth_failure(self) -> None: ...


class ZooKeeper(Protocol):
    """One session. Paths are relative to the chroot. A lost connection raises ConnectionLoss, an expired session
    SessionExpired. In both cases the outcome of requests in flight is unknown."""

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int: ...

    def silence(self) -> float:
        """Seconds since we sent the last request that ZooKeeper answered. At 2/3 of the session timeout a leader stops
        acknowledging and a controller stops acting, well before another broker can take over."""

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
        """One transaction. A failed operation does not raise: the results say which one failed and why."""

    # Bulk operations are split into frames below jute.maxbuffer, and a limited number of frames is in flight. Results
    # are in the order of the arguments.

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """None where a node does not exist. Each batch on the wire is atomic, the whole call is not."""

    async def read_many(self, paths: Sequence[str]) -> Contents:
        """As get_many, in columns, with only the version of each Stat."""

    async def get_many_and_watch(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        """As get_many, with a watch on every node, existing or not. No change after the read is missed."""

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]: ...

    async def write_many(self, ops: Sequence[Op], fence: Fence | None = None) -> list[OpResult]:
        """Every multi of the split carries the fence. If the fence fails, this raises BadVersion with the fence's path,
        and nothing of that multi or a later one was applied. Any other conflict fails its whole multi, and the results
        say so for each operation; the caller reads again and decides again (design D2)."""


class EventSink(Protocol):
    def emit(self, records: Iterable[EventRecord]) -> None:
        """Accept the records, to be formatted and written later. Never blocks, never raises."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports as one value, without ZooKeeper and the event sink, which each process opens itself."""

    clock: Clock
    network: Network
    disk: Disk
    random: Random
