"""ZooKeeper for the rest of klamm: single operations, bulk operations, watches, all on one session.

Callers see paths below the chroot only. Reads and idempotent calls may be repeated after ConnectionLoss; of a write the
outcome is then unknown, except for an ephemeral create, which this client resolves by looking at the node's owner.

A read with a watch registers it as its reply arrives (see `watches`). Bulk reads go by multi-read, bulk watches by a
SetWatches that carries the zxid of the very batch that read those paths: with any later one changes are lost, with this
one nothing is lost and nothing fires in excess (zookeeper.md section 4.4).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, TypeVar

from klamm.model.errors import (
    BadArguments,
    ConnectionLoss,
    NodeExists,
    NoNode,
    RuntimeInconsistency,
    Unimplemented,
    ZooKeeperError,
)
from klamm.model.ports import (
    NO_NODE_VERSION,
    OPEN_ACL,
    Acl,
    Check,
    Clock,
    Contents,
    Create,
    CreateMode,
    Fence,
    Network,
    Node,
    Op,
    OpResult,
    SessionListener,
    Set,
    Sets,
    Stat,
    Watcher,
    WatchEvent,
)
from klamm.zookeeper import jute
from klamm.zookeeper.client import bulk
from klamm.zookeeper.client.address import ConnectString
from klamm.zookeeper.client.connection import BODY, OnReply, Reply
from klamm.zookeeper.client.session import Session, SessionState
from klamm.zookeeper.client.watches import WatchRegistry
from klamm.zookeeper.jute import OpCode

READS_IN_FLIGHT: Final = 8
WRITES_IN_FLIGHT: Final = 2
SINGLE_READS_IN_FLIGHT: Final = 800
"""Where the server has no multi-read."""
LARGEST_OVERHEAD: Final = 16 * 1024
"""Allowed for paths, ACL and fence beside the data of one operation in a bulk write."""

_WITH_DATA: Final = (Set, Create)
R = TypeVar("R")
_Batch = tuple[int, int, asyncio.Future[Reply]]
"""Operations [start, stop) of a bulk call, and the reply to come."""


class ZooKeeperClient:
    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        connect_string: str,
        session_timeout_ms: int,
        *,
        connection_timeout_ms: int | None = None,
        credentials: Sequence[tuple[str, bytes]] = (),
        frame_bytes_max: int = jute.DEFAULT_MAX_FRAME,
    ) -> None:
        servers, self._chroot = ConnectString.parse(connect_string)
        self._watches = WatchRegistry()
        self._session = Session(network, clock, random, servers, session_timeout_ms, self._deliver, self._watches)
        self._session.credentials.extend(credentials)
        self._connection_timeout_ms = connection_timeout_ms or session_timeout_ms
        self._frame_bytes_max = frame_bytes_max
        self.operations: Counter[str] = Counter()
        """Operations asked for, by kind; those inside a bulk call count one each. `requests` counts frames."""

    # --- life ---

    async def start(self) -> None:
        """Returns with a session, or raises ConnectionLoss or AuthFailed within the connection timeout."""
        await self._session.start(self._connection_timeout_ms / 1000)

    async def close(self) -> None:
        """End the session: its ephemerals are gone when this returns, if the server could be told."""
        await self._session.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ZooKeeperClient]:
        await self.start()
        try:
            yield self
        finally:
            await self.close()

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session.timeout_ms

    @property
    def state(self) -> SessionState:
        if self._session.state is SessionState.CONNECTED and not self._session.is_connected:
            return SessionState.DISCONNECTED  # the keeper has yet to notice
        return self._session.state

    @property
    def requests(self) -> Counter[str]:
        """Frames sent, by opcode."""
        return self._session.requests

    @property
    def expirations(self) -> int:
        return self._session.expirations

    @property
    def disconnections(self) -> int:
        return self._session.disconnections

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    def silence(self) -> float:
        return self._session.silence()

    def add_session_listener(self, listener: SessionListener) -> None:
        self._session.listeners.append(listener)

    def drop_connection(self, reason: str = "asked to") -> None:
        """Cut the connection and resume the session on the next server."""
        self._session.abort_connection(reason)

    async def add_auth(self, scheme: str, credential: bytes) -> None:
        """For `digest` the credential is `user:password`. Holds for this and every later connection."""
        await self._session.authenticate(scheme, credential)

    # --- single operations ---

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: tuple[Acl, ...] = OPEN_ACL,
    ) -> tuple[str, Stat]:
        """An ephemeral create whose reply was lost is resolved: a node of our own session is the one we made."""
        sequential = mode in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
        # "/" as a sequential prefix means a bare number below the chroot, not beside it.
        absolute = f"{self._chroot.prefix}/" if sequential and path == "/" else self._chroot.absolute(path)
        body = jute.pack_create(absolute, data, acl, mode)
        session_id, in_doubt = self.session_id, False
        while True:
            try:
                reader = (await self._request("create", OpCode.CREATE2, body, path)).reader()
                return self._chroot.relative(reader.path()), reader.stat()
            except ConnectionLoss:
                if mode is not CreateMode.EPHEMERAL:
                    raise
                in_doubt = True
            except NodeExists:
                stat = await self._exists_after_loss(path) if in_doubt else None
                if stat is not None and stat.ephemeral_owner == session_id:
                    return path, stat
                if stat is not None or not in_doubt:
                    raise

    async def _exists_after_loss(self, path: str) -> Stat | None:
        while True:
            try:
                return await self.exists(path)
            except ConnectionLoss:
                continue

    async def ensure_path(self, path: str) -> None:
        """`/` ensures the chroot itself. Repeated after a lost connection: doing it twice spoils nothing."""
        await self._ensure(self._chroot.absolute(path))

    async def _ensure(self, absolute: str) -> None:
        relative = self._chroot.relative(absolute)
        while True:
            try:
                # Looking first: the right to create in the parent may be missing where the node is there already.
                await self._request("exists", OpCode.EXISTS, jute.pack_path_and_watch(absolute, False), relative)
                return
            except ConnectionLoss:
                continue
            except NoNode:
                pass
            try:
                body = jute.pack_create(absolute, None, OPEN_ACL, CreateMode.PERSISTENT)
                await self._request("create", OpCode.CREATE, body, relative)
                return
            except NoNode:
                await self._ensure(absolute.rpartition("/")[0] or "/")
            except (NodeExists, ConnectionLoss):
                continue

    async def delete(self, path: str, version: int = -1) -> None:
        body = jute.pack_path_and_version(self._chroot.absolute(path), version)
        await self._request("delete", OpCode.DELETE, body, path)

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        absolute = self._chroot.absolute(path)
        body = jute.pack_path_and_watch(absolute, watch is not None)
        try:
            reply = await self._request("exists", OpCode.EXISTS, body, path, self._watches.on_exists(absolute, watch))
        except NoNode:
            return None
        return reply.reader().stat()

    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        absolute = self._chroot.absolute(path)
        body = jute.pack_path_and_watch(absolute, watch is not None)
        reader = (
            await self._request("get", OpCode.GET_DATA, body, path, self._watches.on_get(absolute, watch))
        ).reader()
        return Node(reader.buffer(), reader.stat())

    async def set(self, path: str, data: bytes | None, version: int = -1) -> Stat:
        body = jute.pack_set_data(self._chroot.absolute(path), data, version)
        return (await self._request("set", OpCode.SET_DATA, body, path)).reader().stat()

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        names, _ = await self.children_and_stat(path, watch)
        return names

    async def children_and_stat(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        """Names in the server's order, which means nothing."""
        absolute = self._chroot.absolute(path)
        body = jute.pack_path_and_watch(absolute, watch is not None)
        on_reply = self._watches.on_children(absolute, watch)
        reader = (await self._request("children", OpCode.GET_CHILDREN2, body, path, on_reply)).reader()
        return reader.strings(), reader.stat()

    async def sync(self, path: str) -> None:
        await self._request("sync", OpCode.SYNC, jute.pack_string(self._chroot.absolute(path)), path)

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]:
        body = jute.pack_string(self._chroot.absolute(path))
        reader = (await self._request("get_acl", OpCode.GET_ACL, body, path)).reader()
        return reader.acl(), reader.stat()

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = -1) -> Stat:
        body = jute.pack_string(self._chroot.absolute(path)) + jute.pack_acl(acl) + jute.INT.pack(version)
        return (await self._request("set_acl", OpCode.SET_ACL, body, path)).reader().stat()

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        self._count(ops)
        body = b"".join([*bulk.pack_ops(ops, self._chroot), jute.MULTI_END])
        path = ops[0].path if ops else ""
        self._refuse_oversize(len(body), path)
        reply = await self._session.submit(OpCode.MULTI, body, path)
        return bulk.unpack_multi(reply.payload, BODY, ops, self._chroot)

    # --- bulk ---

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read_many(OpCode.GET_DATA, paths, bulk.unpack_nodes, self._get_or_none)

    async def read_many(self, paths: Sequence[str]) -> Contents:
        contents = Contents([], [])

        def submit() -> Iterator[_Batch]:
            for start, stop, body in bulk.multi_reads(OpCode.GET_DATA, paths, self._chroot):
                yield start, stop, self._session.submit(OpCode.MULTI_READ, body, paths[start])

        def consume(start: int, stop: int, reply: Reply) -> None:
            found = bulk.unpack_contents(reply.payload, BODY, paths[start:stop])
            contents.data.extend(found.data)
            contents.versions.extend(found.versions)

        if self._session.has_multi_read:
            try:
                await _in_window(submit(), READS_IN_FLIGHT, consume)
                self.operations["get"] += len(paths)
                return contents
            except Unimplemented:  # the connection has moved to an older server
                pass
        nodes = await self._read_singly(paths, self._get_or_none)
        return Contents(
            [None if node is None else node.data for node in nodes],
            [NO_NODE_VERSION if node is None else node.stat.version for node in nodes],
        )

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return await self._read_many(OpCode.GET_CHILDREN, paths, bulk.unpack_children, self._children_or_none)

    async def get_many_and_watch(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        armed: list[asyncio.Future[Reply]] = []

        def arm(reply: Reply, batch: Sequence[str], nodes: Sequence[Node | None]) -> None:
            armed.append(self._arm(reply.zxid, batch, nodes, watch))

        try:
            nodes = await self._read_many(
                OpCode.GET_DATA, paths, bulk.unpack_nodes, lambda path: self._get_and_watch(path, watch), arm
            )
        finally:
            outcomes = await asyncio.gather(*armed, return_exceptions=True)
        for outcome in outcomes:
            # A lost connection is no failure here: the registry holds the watches, and the next connection sets them.
            if isinstance(outcome, BaseException) and not isinstance(outcome, ConnectionLoss):
                raise outcome
        return nodes

    def _arm(
        self, zxid: int, paths: Sequence[str], nodes: Sequence[Node | None], watch: Watcher
    ) -> asyncio.Future[Reply]:
        """Watch what one batch has read, from that batch's own zxid on."""
        self.operations["watch"] += len(paths)
        absolute = self._chroot.absolute_all(paths)
        found = [path for path, node in zip(absolute, nodes, strict=True) if node is not None]
        missing = [path for path, node in zip(absolute, nodes, strict=True) if node is None]
        sent = self._session.submit(OpCode.SET_WATCHES, jute.pack_set_watches(zxid, found, missing, ()), "")
        if not sent.done():  # refused: the session is gone, and its watches with it
            # Before the reply, because what has changed meanwhile fires before it.
            self._watches.add_data(found, watch, zxid, exists=True)
            self._watches.add_data(missing, watch, zxid, exists=False)
        return sent

    async def write_many(self, ops: Sequence[Op], fence: Fence | None = None) -> list[OpResult]:
        checks: list[Op] = [] if fence is None else [Check(fence.path, fence.version)]
        self._count_and_look_at(ops)
        results: list[OpResult] = []
        fenced: ZooKeeperError | None = None
        sets = type(ops) is Sets

        def submit() -> Iterator[_Batch]:
            for start, stop, body in bulk.multis(ops, self._chroot, checks):
                if fenced is not None:
                    return
                yield start, stop, self._session.submit(OpCode.MULTI, body, ops[start].path)

        def consume(start: int, stop: int, reply: Reply) -> None:
            nonlocal fenced
            if sets and bulk.all_set(reply.payload, BODY, stop - start, fenced=bool(checks)):
                results.extend([None] * (stop - start))
                return
            batch = bulk.unpack_multi(reply.payload, BODY, [*checks, *ops[start:stop]], self._chroot)
            if checks:
                check = batch.pop(0)
                # The batches that are in flight by now meet the same fence: its version only grows.
                if isinstance(check, ZooKeeperError) and not isinstance(check, RuntimeInconsistency):
                    fenced = fenced or check
            results.extend(batch)

        await _in_window(submit(), WRITES_IN_FLIGHT, consume)
        if fenced is not None:
            raise fenced
        return results

    async def _read_many(
        self,
        opcode: OpCode,
        paths: Sequence[str],
        unpack: Callable[[bytes, int, Sequence[str]], list[R]],
        single: Callable[[str], Coroutine[Any, Any, R]],
        then: Callable[[Reply, Sequence[str], list[R]], None] | None = None,
    ) -> list[R]:
        """By multi-read, or by single reads where the server has none; `then` sees each batch with its reply."""
        if not self._session.has_multi_read:
            return await self._read_singly(paths, single)
        results: list[R] = []

        def submit() -> Iterator[_Batch]:
            for start, stop, body in bulk.multi_reads(opcode, paths, self._chroot):
                yield start, stop, self._session.submit(OpCode.MULTI_READ, body, paths[start])

        def consume(start: int, stop: int, reply: Reply) -> None:
            batch = paths[start:stop]
            values = unpack(reply.payload, BODY, batch)
            results.extend(values)
            if then is not None:
                then(reply, batch, values)

        try:
            await _in_window(submit(), READS_IN_FLIGHT, consume)
        except Unimplemented:  # the connection has moved to an older server
            return await self._read_singly(paths, single)
        self.operations["get" if opcode is OpCode.GET_DATA else "children"] += len(paths)
        return results

    async def _read_singly(self, paths: Sequence[str], single: Callable[[str], Coroutine[Any, Any, R]]) -> list[R]:
        results: list[R] = []
        for start in range(0, len(paths), SINGLE_READS_IN_FLIGHT):
            results += await asyncio.gather(*map(single, paths[start : start + SINGLE_READS_IN_FLIGHT]))
        return results

    async def _get_or_none(self, path: str) -> Node | None:
        try:
            return await self.get(path)
        except NoNode:
            return None

    async def _children_or_none(self, path: str) -> list[str] | None:
        try:
            return await self.children(path)
        except NoNode:
            return None

    async def _get_and_watch(self, path: str, watch: Watcher) -> Node | None:
        while True:
            try:
                return await self.get(path, watch)
            except NoNode:
                if await self.exists(path, watch) is None:
                    return None

    # --- inside ---

    async def _request(
        self, kind: str, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None
    ) -> Reply:
        self.operations[kind] += 1
        self._refuse_oversize(len(body), path)
        return await self._session.submit(opcode, body, path, on_reply)

    def _refuse_oversize(self, body_bytes: int, path: str) -> None:
        size = body_bytes + jute.REQUEST_HEADER.size
        if size > self._frame_bytes_max:
            # A server answers such a frame by closing the connection, without a word.
            raise BadArguments(path, f"request of {size} bytes, a server takes {self._frame_bytes_max}")

    def _count_and_look_at(self, ops: Sequence[Op]) -> None:
        """All of it before anything is sent, so that a refusal means that nothing was written."""
        largest = self._frame_bytes_max - LARGEST_OVERHEAD - jute.REQUEST_HEADER.size
        if isinstance(ops, Sets) and max(map(len, ops.data), default=0) <= largest:
            self.operations["set"] += len(ops)
            self._chroot.absolute_all(ops.paths)
            return
        self._count(ops)
        for op in ops:
            if op[0][:1] != "/":
                self._chroot.absolute(op.path)
            if isinstance(op, _WITH_DATA) and op.data is not None and len(op.data) > largest:
                self._refuse_oversize(len(op.data) + LARGEST_OVERHEAD, op.path)

    def _count(self, ops: Sequence[Op]) -> None:
        for kind, count in Counter(map(type, ops)).items():
            self.operations[kind.__name__.lower()] += count

    def _deliver(self, event: WatchEvent) -> None:
        watchers = self._watches.take(event)
        if not watchers:
            return
        seen = WatchEvent(event.kind, self._chroot.relative(event.path))
        for watcher in watchers:
            try:
                watcher(seen)
            except Exception as error:
                # As with any callback of the loop: reported, and the ones after it are still called.
                context = {"message": f"watcher {watcher!r} failed on {seen}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


async def _in_window(batches: Iterator[_Batch], limit: int, consume: Callable[[int, int, Reply], None]) -> None:
    """Draw batches, at most `limit` in flight, and consume their replies in order."""
    window: deque[_Batch] = deque()
    try:
        while True:
            while len(window) < limit and (batch := next(batches, None)) is not None:
                window.append(batch)
            if not window:
                return
            start, stop, future = window.popleft()
            consume(start, stop, await future)
    finally:
        for _, _, future in window:
            # Nobody waits for these any more: mark an error as seen, let a reply go by.
            if not future.cancel() and not future.cancelled():
                future.exception()
