"""The election of the controller: /controller names it, /controller_epoch fences what it writes.

Only this module reads and writes these two znodes. Every change of controller is one multi: (delete the old node, with
its version) + create ours, ephemeral + set the epoch, with its version. So there are never two controllers, and during
a take-over there is always one; the fence of the former controller fails from that zxid on, and the end of its session
does not remove our node. JVM brokers of 2.5.1 and 3.9.1 accept this (design D12).

- A persistent /controller belongs to a KRaft migration and is never touched.
- After a lost answer it reads both: it has won if our session owns the node and the epoch is the one we wrote.
- The epoch never goes back, whatever was done to its znode; see `_next_epoch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from klamm.model.errors import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    RuntimeInconsistency,
    ZNodeError,
    ZooKeeperError,
)
from klamm.model.ids import INITIAL_CONTROLLER_EPOCH, NO_LEADER, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.ports import Check, Clock, Create, CreateMode, Delete, Fence, Node, Op, Set, Stat, Watcher, ZooKeeper
from klamm.model.settings import INT_MAX
from klamm.zookeeper.retries import RECONNECT_PAUSE_S, children_or_none, until_connected
from klamm.zookeeper.znodes import controller as controller_znode
from klamm.zookeeper.znodes import controller_epoch as epoch_znode
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode

log = logging.getLogger(__name__)

NO_BROKER: Final = NO_LEADER
PERSISTENT: Final = 0
"""The owner of a persistent node."""
EPOCH_GAP: Final = 1_000
"""Added where the epoch can only be guessed: more than the number of elections that can have left no trace."""
VERSIONS_SKIPPED_MAX: Final = 10_000
"""In one transaction: 0.4 MB of the 1 MB that ZooKeeper accepts."""
EPOCH_MAX: Final = INT_MAX - 1_000_000
"""A greater number is junk: the epoch is an int32 on the wire and must have room to grow."""
STATES_WINDOW: Final = 2_000


class Holder(NamedTuple):
    """Content of /controller, and the session that owns it."""

    broker: BrokerId
    """NO_BROKER if the data cannot be read."""
    owner: int
    czxid: int
    version: int
    problem: ZNodeError | None = None


class Epoch(NamedTuple):
    """Content of /controller_epoch."""

    value: ControllerEpoch
    zk_version: int
    problem: ZNodeError | None = None
    """Why the value is only a guess; None if it is certain."""


class Won(NamedTuple):
    """An election that this broker won."""

    epoch: ControllerEpoch
    zk_version: int
    healed: ZNodeError | None = None
    """What was wrong with /controller_epoch before, if anything."""


class ControllerElection:
    def __init__(self, zk: ZooKeeper, clock: Clock, me: BrokerId, watch: Watcher) -> None:
        self._zk = zk
        self._clock = clock
        self._me = me
        self._watch = watch
        self._greatest_seen = INITIAL_CONTROLLER_EPOCH

    def is_ours(self, holder: Holder | None) -> bool:
        return holder is not None and holder.owner == self._zk.session_id

    async def read(self) -> tuple[Holder | None, Epoch | None]:
        """Read both znodes at one moment, and watch them. Each is None if it does not exist."""
        paths = [controller_znode.PATH, epoch_znode.PATH]
        node, epoch_node = await self._zk.get_many_and_watch(paths, self._watch)
        epoch = None if epoch_node is None else _epoch_of(epoch_node)
        if epoch is not None and epoch.problem is None:
            self._greatest_seen = max(self._greatest_seen, epoch.value)
        return None if node is None else _holder_of(node), epoch

    async def stand(self) -> Won | None:
        """Become controller if there is none, or if our own session owns /controller without leading: after a lost
        answer, or edited data. None if another broker is controller."""
        return await self._take(lambda holder: holder is None or self.is_ours(holder))

    async def take_over(self, czxid: int) -> Won | None:
        """Replace the /controller node that was created by this zxid. None if it is already gone or replaced."""
        return await self._take(
            lambda holder: holder is not None and holder.czxid == czxid and holder.owner != PERSISTENT
        )

    async def resign(self, fence: Fence) -> None:
        """Delete our own node, fenced, so that all brokers stand again."""

        async def delete_ours() -> None:
            holder, _ = await self.read()
            if holder is not None and self.is_ours(holder):
                await self._zk.multi([Check(*fence), Delete(controller_znode.PATH, holder.version)])

        try:
            await until_connected(delete_ours)
        except ZooKeeperError as error:
            log.warning("cannot delete /controller: %s", error)

    # --- internals ---

    async def _take(self, may_replace: Callable[[Holder | None], bool]) -> Won | None:
        tried: Won | None = None
        while True:
            try:
                holder, epoch = await self.read()
                if tried is not None and epoch is not None and epoch.value == tried.epoch and self.is_ours(holder):
                    return tried._replace(zk_version=epoch.zk_version)  # the answer was lost, the election was not
                if not may_replace(holder):
                    return None
                known = epoch or await self._create_epoch()
                tried = Won(await self._next_epoch(known), known.zk_version + 1, known.problem)
                results = await self._zk.multi(self._replacement(holder, known, tried.epoch))
            except ConnectionLoss:
                await asyncio.sleep(RECONNECT_PAUSE_S)
                continue
            if isinstance(results[-1], Stat):
                self._greatest_seen = tried.epoch
                return tried._replace(zk_version=results[-1].version)
            for result in results:
                # Another broker won, or the epoch was written: read again. Any other error would only repeat itself.
                overtaken = (NodeExists, NoNode, BadVersion, RuntimeInconsistency)
                if isinstance(result, ZooKeeperError) and not isinstance(result, overtaken):
                    raise result

    def _replacement(self, holder: Holder | None, known: Epoch, epoch: ControllerEpoch) -> list[Op]:
        document = controller_znode.encode(self._me, self._clock.wall_ms())
        ops: list[Op] = [Delete(controller_znode.PATH, holder.version)] if holder is not None else []
        ops.append(Create(controller_znode.PATH, document, CreateMode.EPHEMERAL))
        written = epoch_znode.encode(epoch)
        ops.append(Set(epoch_znode.PATH, written, known.zk_version))
        if known.problem is not None:
            # A healed epoch jumps, and its version with it: if the number is lost again before a state is written under
            # it, only the version tells a broker that has just started how far the epoch had come.
            behind = min(epoch - known.zk_version - 1, VERSIONS_SKIPPED_MAX)
            ops += [Set(epoch_znode.PATH, written)] * behind
        return ops

    async def _create_epoch(self) -> Epoch:
        """Create the missing znode: at 0 in a new cluster, else above the lost epoch.

        Then its version is raised to the epoch: fences are versions, and a new node counts from 0. Without this a
        former controller that has not seen the deletion would find its version again after a few elections, and write.
        """
        floor = max(self._greatest_seen, await self._greatest_in_states())
        first = ControllerEpoch(floor + EPOCH_GAP if floor else INITIAL_CONTROLLER_EPOCH)
        document = epoch_znode.encode(first)
        sets = [Set(epoch_znode.PATH, document)] * min(first, VERSIONS_SKIPPED_MAX)
        *_, last = await self._zk.multi([Create(epoch_znode.PATH, document), *sets])
        # If another broker has just created it, the version in the election's multi decides.
        problem = ZNodeError(epoch_znode.PATH, f"it was deleted; the epoch goes on from {first}") if floor else None
        return Epoch(first, last.version if isinstance(last, Stat) else 0, problem)

    async def _next_epoch(self, known: Epoch) -> ControllerEpoch:
        """An epoch above any that a broker may have received: brokers refuse a controller with a lower one, and a
        controller does not touch a state written under a higher one.

        Every election sets the znode once, a healing one as often as its epoch jumps, so the data version counts them:
        a number below the version was written by hand. The epochs that we read at earlier elections count too. If the
        number is lost too (junk, or a new node), the highest controller epoch in any partition's state is only a lower
        bound, since a controller need not write a state; hence the gap.
        """
        floor = max(known.value, self._greatest_seen, known.zk_version)
        if known.problem is not None and known.value == INITIAL_CONTROLLER_EPOCH:
            floor = max(floor, await self._greatest_in_states()) + EPOCH_GAP
        return ControllerEpoch(floor + 1)

    async def _greatest_in_states(self) -> ControllerEpoch:
        greatest = INITIAL_CONTROLLER_EPOCH
        topics = await children_or_none(self._zk, topic_znode.PARENT) or []
        # By listing, not from the topics' own znodes: a topic whose znode cannot be read still has states.
        listed = await self._zk.children_many([partition_state.partitions_path(topic) for topic in topics])
        states = [
            partition_state.path(TopicPartition(topic, int(number)))
            for topic, numbers in zip(topics, listed, strict=True)
            for number in sorted(numbers or ())
            if number.isdecimal()
        ]
        for start in range(0, len(states), STATES_WINDOW):
            window = states[start : start + STATES_WINDOW]
            for path, node in zip(window, await self._zk.get_many(window), strict=True):
                try:
                    epoch = partition_state.decode(path, node.data).controller_epoch if node else greatest
                except ZNodeError:
                    continue
                greatest = max(greatest, epoch if epoch <= EPOCH_MAX else greatest)
            await asyncio.sleep(0)
        return greatest


def _holder_of(node: Node) -> Holder:
    stat = node.stat
    try:
        broker = controller_znode.decode(controller_znode.PATH, node.data)
    except ZNodeError as error:
        return Holder(NO_BROKER, stat.ephemeral_owner, stat.czxid, stat.version, error)
    return Holder(broker, stat.ephemeral_owner, stat.czxid, stat.version)


def _epoch_of(node: Node) -> Epoch:
    try:
        value = epoch_znode.decode(epoch_znode.PATH, node.data)
        if value > EPOCH_MAX:
            raise ZNodeError(epoch_znode.PATH, f"{value} leaves no room for the next epoch")
    except ZNodeError as error:
        return Epoch(INITIAL_CONTROLLER_EPOCH, node.stat.version, error)
    return Epoch(value, node.stat.version)
