"""The operations of the ZooKeeper port as single requests. A subclass says how a request reaches a server.

Callers see only paths below the chroot. After ConnectionLoss the outcome of a write is unknown, except for an ephemeral
create, which is resolved by looking at the node's owner. A read with a watch registers it as its reply arrives (see
`watches`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from klamm.model.errors import BadArguments, ConnectionLoss, NodeExists, NoNode
from klamm.model.ports import OPEN_ACL, Acl, CreateMode, Node, Op, OpResult, Stat, Watcher, WatchEvent
from klamm.zookeeper import jute
from klamm.zookeeper.client import bulk
from klamm.zookeeper.client.address import Chroot
from klamm.zookeeper.client.connection import BODY, OnReply, Reply
from klamm.zookeeper.client.watches import WatchRegistry
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.retries import until_connected


class Operations(ABC):
    def __init__(self, chroot: Chroot, frame_bytes_max: int = jute.DEFAULT_MAX_FRAME) -> None:
        self._chroot = chroot
        self._frame_bytes_max = frame_bytes_max
        self._watches = WatchRegistry()
        self.operations: Counter[str] = Counter()
        """Number of operations by kind. Each operation inside a bulk call counts."""

    @property
    @abstractmethod
    def session_id(self) -> int: ...

    @abstractmethod
    def _submit(self, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None) -> asyncio.Future[Reply]:
        """Send a request. The future always ends, with the reply or an error."""

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        mode: CreateMode = CreateMode.PERSISTENT,
        acl: tuple[Acl, ...] = OPEN_ACL,
    ) -> tuple[str, Stat]:
        """Resolves an ephemeral create whose reply was lost: if this session owns the node, the create succeeded."""
        sequential = mode in (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
        # "/" as a sequential prefix means a bare number below the chroot, not a number after the chroot's own name.
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
                stat = await until_connected(lambda: self.exists(path), pause_s=0) if in_doubt else None
                if stat is not None and stat.ephemeral_owner == session_id:
                    return path, stat
                if stat is not None or not in_doubt:
                    raise

    async def ensure_path(self, path: str) -> None:
        """`/` ensures the chroot itself. Repeated after a lost connection, since doing it twice does no harm."""
        await until_connected(lambda: self._ensure(self._chroot.absolute(path)), pause_s=0)

    async def _ensure(self, absolute: str) -> None:
        relative = self._chroot.relative(absolute)
        while True:
            try:
                # Look first: a client may lack the right to create in the parent of a node that exists already.
                await self._request("exists", OpCode.EXISTS, jute.pack_path_and_watch(absolute, False), relative)
                return
            except NoNode:
                pass
            try:
                body = jute.pack_create(absolute, None, OPEN_ACL, CreateMode.PERSISTENT)
                await self._request("create", OpCode.CREATE, body, relative)
                return
            except NoNode:
                await self._ensure(absolute.rpartition("/")[0] or "/")
            except NodeExists:
                return

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
        """The names come in the server's order, which has no meaning."""
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
        reply = await self._submit(OpCode.MULTI, body, path)
        return bulk.unpack_multi(reply.payload, BODY, ops, self._chroot)

    # --- internals ---

    async def _request(
        self, kind: str, opcode: OpCode, body: bytes, path: str, on_reply: OnReply | None = None
    ) -> Reply:
        self.operations[kind] += 1
        self._refuse_oversize(len(body), path)
        return await self._submit(opcode, body, path, on_reply)

    def _refuse_oversize(self, body_bytes: int, path: str) -> None:
        size = body_bytes + jute.REQUEST_HEADER.size
        if size > self._frame_bytes_max:
            # A server would close the connection without an answer.
            raise BadArguments(path, f"request of {size} bytes, the server's limit is {self._frame_bytes_max}")

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
                # Treated like any callback of the loop: report it and go on with the next watcher.
                context = {"message": f"watcher {watcher!r} failed on {seen}", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
