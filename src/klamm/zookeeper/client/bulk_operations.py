"""The bulk operations of the ZooKeeper port: split into frames, with a few frames in flight.

Bulk reads use multi-read. Bulk watches use a SetWatches that carries the zxid of the same batch that read those paths:
a later zxid loses changes, and with this one nothing is lost and no watch fires needlessly (design D3).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from klamm.model.errors import ConnectionLoss, NoNode, RuntimeInconsistency, Unimplemented, ZooKeeperError
from klamm.model.ports import NO_NODE_VERSION, Check, Contents, Create, Fence, Node, Op, OpResult, Set, Sets, Watcher
from klamm.zookeeper import jute
from klamm.zookeeper.client import bulk
from klamm.zookeeper.client.connection import BODY, Reply
from klamm.zookeeper.client.operations import Operations
from klamm.zookeeper.jute import OpCode

READS_IN_FLIGHT: Final = 8
WRITES_IN_FLIGHT: Final = 2
SINGLE_READS_IN_FLIGHT: Final = 800
"""For a server without multi-read."""
LARGEST_OVERHEAD: Final = 16 * 1024
"""Allowance for paths, ACL and fence, in addition to the data of one operation in a bulk write."""

_WITH_DATA: Final = (Set, Create)
R = TypeVar("R")
_Batch = tuple[int, int, asyncio.Future[Reply]]
"""Operations [start, stop) of a bulk call, and the future of their reply."""


class BulkOperations(Operations):
    @property
    @abstractmethod
    def _has_multi_read(self) -> bool:
        """Whether the server knows multi-read (ZooKeeper 3.6 and later)."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read_many(OpCode.GET_DATA, paths, bulk.unpack_nodes, lambda: self._get_singly(paths))

    async def read_many(self, paths: Sequence[str]) -> Contents:
        contents = Contents([], [])

        def submit() -> Iterator[_Batch]:
            for start, stop, body in bulk.multi_reads(OpCode.GET_DATA, paths, self._chroot):
                yield start, stop, self._submit(OpCode.MULTI_READ, body, paths[start])

        def consume(start: int, stop: int, reply: Reply) -> None:
            found = bulk.unpack_contents(reply.payload, BODY, paths[start:stop])
            contents.data.extend(found.data)
            contents.versions.extend(found.versions)

        if self._has_multi_read:
            try:
                await _in_window(submit(), READS_IN_FLIGHT, consume)
                self.operations["get"] += len(paths)
                return contents
            except Unimplemented:  # the session has moved to an older server
                pass
        nodes = await self._get_singly(paths)
        return Contents(
            [None if node is None else node.data for node in nodes],
            [NO_NODE_VERSION if node is None else node.stat.version for node in nodes],
        )

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return await self._read_many(OpCode.GET_CHILDREN, paths, bulk.unpack_children, lambda: self._list_singly(paths))

    async def get_many_and_watch(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        armed: list[asyncio.Future[Reply]] = []

        def arm(reply: Reply, batch: Sequence[str], nodes: Sequence[Node | None]) -> None:
            armed.append(self._arm(reply.zxid, batch, nodes, watch))

        try:
            nodes = await self._read_many(
                OpCode.GET_DATA, paths, bulk.unpack_nodes, lambda: self._get_and_watch_singly(paths, watch), arm
            )
        finally:
            outcomes = await asyncio.gather(*armed, return_exceptions=True)
        for outcome in outcomes:
            # A lost connection does not matter here: the registry holds the watches, and the next connection sets them.
            if isinstance(outcome, BaseException) and not isinstance(outcome, ConnectionLoss):
                raise outcome
        return nodes

    def _arm(
        self, zxid: int, paths: Sequence[str], nodes: Sequence[Node | None], watch: Watcher
    ) -> asyncio.Future[Reply]:
        """Watch the paths of one batch from the zxid of that batch on."""
        self.operations["watch"] += len(paths)
        absolute = self._chroot.absolute_all(paths)
        found = [path for path, node in zip(absolute, nodes, strict=True) if node is not None]
        missing = [path for path, node in zip(absolute, nodes, strict=True) if node is None]
        sent = self._submit(OpCode.SET_WATCHES, jute.pack_set_watches(zxid, found, missing, ()), "")
        if not sent.done():  # refused if done: the session is gone, and its watches with it
            # Register before the reply arrives: watches on nodes that have changed meanwhile fire before it.
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
                yield start, stop, self._submit(OpCode.MULTI, body, ops[start].path)

        def consume(start: int, stop: int, reply: Reply) -> None:
            nonlocal fenced
            if sets and bulk.all_set(reply.payload, BODY, stop - start, fenced=bool(checks)):
                results.extend([None] * (stop - start))
                return
            batch = bulk.unpack_multi(reply.payload, BODY, [*checks, *ops[start:stop]], self._chroot)
            if checks:
                check = batch.pop(0)
                # The batches in flight fail at the same fence, because its version only grows.
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
        singly: Callable[[], Awaitable[list[R]]],
        then: Callable[[Reply, Sequence[str], list[R]], None] | None = None,
    ) -> list[R]:
        """Use multi-read, or single reads if the server has none. `then` receives each batch with its reply."""
        if not self._has_multi_read:
            return await singly()
        results: list[R] = []

        def submit() -> Iterator[_Batch]:
            for start, stop, body in bulk.multi_reads(opcode, paths, self._chroot):
                yield start, stop, self._submit(OpCode.MULTI_READ, body, paths[start])

        def consume(start: int, stop: int, reply: Reply) -> None:
            batch = paths[start:stop]
            values = unpack(reply.payload, BODY, batch)
            results.extend(values)
            if then is not None:
                then(reply, batch, values)

        try:
            await _in_window(submit(), READS_IN_FLIGHT, consume)
        except Unimplemented:  # the session has moved to an older server
            return await singly()
        self.operations["get" if opcode is OpCode.GET_DATA else "children"] += len(paths)
        return results

    async def _get_singly(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read_singly("get", OpCode.GET_DATA, paths, _node)

    async def _list_singly(self, paths: Sequence[str]) -> list[list[str] | None]:
        return await self._read_singly("children", OpCode.GET_CHILDREN, paths, _names)

    async def _read_singly(
        self, kind: str, opcode: OpCode, paths: Sequence[str], unpack: Callable[[jute.JuteReader], R]
    ) -> list[R | None]:
        """One request for each path, many in flight, without a task for each: 20,000 reads are one look of the
        dashboard at a large cluster. None where a node does not exist."""
        results: list[R | None] = []

        def submit() -> Iterator[_Batch]:
            for index, path in enumerate(paths):
                body = jute.pack_path_and_watch(self._chroot.absolute(path), False)
                self._refuse_oversize(len(body), path)
                yield index, index + 1, self._submit(opcode, body, path)

        await _in_window(
            submit(),
            SINGLE_READS_IN_FLIGHT,
            lambda _start, _stop, reply: results.append(unpack(reply.reader())),
            missing=lambda: results.append(None),
        )
        self.operations[kind] += len(paths)
        return results

    async def _get_and_watch_singly(self, paths: Sequence[str], watch: Watcher) -> list[Node | None]:
        results: list[Node | None] = []
        for start in range(0, len(paths), SINGLE_READS_IN_FLIGHT):
            some = paths[start : start + SINGLE_READS_IN_FLIGHT]
            results += await asyncio.gather(*(self._get_and_watch(path, watch) for path in some))
        return results

    async def _get_and_watch(self, path: str, watch: Watcher) -> Node | None:
        while True:
            try:
                return await self.get(path, watch)
            except NoNode:
                if await self.exists(path, watch) is None:
                    return None

    def _count_and_look_at(self, ops: Sequence[Op]) -> None:
        """Checks every operation before anything is sent, so a refusal means that nothing was written."""
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


def _node(reader: jute.JuteReader) -> Node:
    return Node(reader.buffer(), reader.stat())


def _names(reader: jute.JuteReader) -> list[str]:
    return reader.strings()


async def _in_window(
    batches: Iterator[_Batch],
    limit: int,
    consume: Callable[[int, int, Reply], None],
    missing: Callable[[], None] | None = None,
) -> None:
    """Draw batches, keep at most `limit` in flight, and consume their replies in order. `missing` stands for the reply
    to a request whose node does not exist; without it that is an error."""
    window: deque[_Batch] = deque()
    try:
        while True:
            while len(window) < limit and (batch := next(batches, None)) is not None:
                window.append(batch)
            if not window:
                return
            start, stop, future = window.popleft()
            try:
                reply = await future
            except NoNode:
                if missing is None:
                    raise
                missing()
            else:
                consume(start, stop, reply)
    finally:
        for _, _, future in window:
            # Nothing awaits these any more: mark errors as retrieved, ignore replies.
            if not future.cancel() and not future.cancelled():
                future.exception()
