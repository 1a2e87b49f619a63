"""Bulk writes and deletions of one term: each multi checks the version of /controller_epoch, and one bad operation
concerns itself.

ZooKeeper applies a multi as a whole or not at all. Three kinds of errors mean that the tree is not as it was read: a
conflict, a node that is there already or not there, a lost connection. Any other error is about one operation, which
*resists* however often it is tried: an ACL, a child below a node that is to be deleted, a document above the limit of
the server. It is refused by name, and the others of its multi are tried again. From the third attempt on each multi is
half as large as before (`at_once`). Each names its own culprit, so many culprits cost about log2 attempts, not one
attempt each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeGuard

from klamm.controller.decisions.steps import chunked
from klamm.model.errors import (
    BadArguments,
    BadVersion,
    ConnectionLoss,
    ControllerMoved,
    NodeExists,
    NoNode,
    RuntimeInconsistency,
    ZooKeeperError,
)
from klamm.model.ports import Check, Delete, Fence, Node, Op, OpResult, ZooKeeper
from klamm.zookeeper.isolated_reads import read_children, read_nodes
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import controller_epoch as controller_epoch_znode

ROUNDS_MAX: Final = 20
"""A conflict means that another client wrote between our read and our write, a window of milliseconds. After this many
in a row something writes in a loop, and the node is left to the next trigger. Enough to halve a multi until each
operation is alone."""
TRIED_WHOLE: Final = 2
"""Attempts before a multi is halved: most often only one operation conflicts or resists."""
WHOLE_MAX: Final = 1024

_AS_BEFORE: Final = (BadVersion, NodeExists, NoNode, RuntimeInconsistency, ConnectionLoss)


def resists(result: object) -> TypeGuard[ZooKeeperError]:
    """The operation itself was refused, and would be again."""
    return isinstance(result, ZooKeeperError) and not isinstance(result, _AS_BEFORE)


def at_once(attempt: int, operations: int) -> int:
    """How many operations to write in one multi."""
    if attempt >= TRIED_WHOLE:
        operations = min(operations, WHOLE_MAX) >> (attempt - TRIED_WHOLE + 1)
    return max(1, operations)


class FencedWrites:
    """Belongs to one term: made at the election, dropped at the resignation."""

    def __init__(self, zk: ZooKeeper, epoch_zk_version: int) -> None:
        self._zk = zk
        self.fence = Fence(controller_epoch_znode.PATH, epoch_zk_version)

    async def check_fence(self) -> None:
        """Write nothing, but raise ControllerMoved if another controller was elected: call it before sending a request
        that cannot be undone."""
        await self.write([])

    async def write(self, ops: Sequence[Op]) -> list[OpResult]:
        """Fenced, with one result per operation. Repeated after a lost connection, so `ops` must be idempotent."""
        return await until_connected(lambda: self._fenced(ops))

    async def try_write(self, ops: Sequence[Op], size: int | None = None) -> list[OpResult]:
        """Like `write`, but without repetition: if the connection is lost, the results are ConnectionLoss. With `size`,
        in parts that do not depend on each other."""
        if size is None or len(ops) <= size:
            return await self._try(ops)
        parts = await asyncio.gather(*(self._try(part) for part in chunked(ops, size)), return_exceptions=True)
        results: list[OpResult] = []
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            results += part
        return results

    async def delete(self, paths: Sequence[str]) -> dict[str, ZooKeeperError]:
        """In this order, which must be children first. A node that is already gone counts as deleted. Returns the nodes
        that could not be deleted, and why."""
        stuck: dict[str, ZooKeeperError] = {}
        pending = list(paths)
        for attempt in range(ROUNDS_MAX):
            failed: dict[str, ZooKeeperError] = {}
            for some in chunked(pending, at_once(attempt, len(pending))):
                results = await self.write([Delete(path) for path in some])
                failed |= {p: r for p, r in zip(some, results, strict=True) if isinstance(r, ZooKeeperError)}
            # A parent does not resist only because its children are still to be deleted.
            parents = {path.rpartition("/")[0] for path in failed}
            stuck |= {path: error for path, error in failed.items() if resists(error) and path not in parents}
            # One missing node fails the whole multi: find all missing nodes by one read, not one per round.
            pending = await self._present([path for path in failed if path not in stuck])
            if not pending:
                return stuck
        return stuck | {path: failed[path] for path in pending}

    async def delete_trees(self, roots: Sequence[str]) -> dict[str, ZooKeeperError]:
        """Each root with everything below it. Returns the nodes that could not be deleted, and why."""
        layers: list[list[str]] = [list(roots)]
        while layers[-1]:
            above = layers[-1]
            below = await until_connected(partial(read_children, self._zk, above))
            layers.append([f"{path}/{name}" for path, names in zip(above, below, strict=True) for name in names or ()])
        return await self.delete([path for layer in reversed(layers) for path in layer])

    async def read(self, paths: Sequence[str]) -> list[Node | None]:
        """A node that may not be read counts as absent."""
        if not paths:
            return []
        return await until_connected(lambda: read_nodes(self._zk.get_many, paths))

    # --- internals ---

    async def _present(self, paths: Sequence[str]) -> list[str]:
        unreadable: set[str] = set()
        if not paths:
            return []
        nodes = await until_connected(
            lambda: read_nodes(self._zk.get_many, paths, lambda problem: unreadable.add(problem.path))
        )
        return [p for p, node in zip(paths, nodes, strict=True) if node is not None or p in unreadable]

    async def _try(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            return await self._fenced(ops)
        except ConnectionLoss as lost:
            return [lost] * len(ops)

    async def _fenced(self, ops: Sequence[Op]) -> list[OpResult]:
        try:
            if not ops:
                # write_many without operations would check nothing.
                results = await self._zk.multi([Check(*self.fence)])
                if isinstance(results[0], ZooKeeperError):
                    raise results[0]
                return []
            return await self._zk.write_many(ops, self.fence)
        except (BadVersion, NoNode) as error:  # a deleted fence means the same as a moved one
            if error.path != self.fence.path:
                raise
            raise ControllerMoved(f"{error.path} is no longer at version {self.fence.version}") from error
        except BadArguments as error:  # refused before anything was sent: as if a server had refused the multi
            if all(op.path != error.path for op in ops):
                raise
            return [error if op.path == error.path else RuntimeInconsistency(op.path) for op in ops]
