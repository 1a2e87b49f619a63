"""Writes an ISR to ZooKeeper; it takes effect only when the outcome of the write is known.

The write is a conditional set of the state znode with the same leader, the same leader epoch, and the controller epoch
that came with the leadership. Kafka 2.5 writes under the partition's lock. Here the event loop goes on, so from the
proposal until the outcome is known the high watermark waits for current and proposed members: nothing is acknowledged
by an ISR that may not be in force.

    (a) answered with a Stat                     -> settled; record it for the notifications
    (b) BadVersion, znode has our leader epoch   -> the znode is in force, by a write whose answer got lost or by an
                                                    earlier one; adopt its ISR
    (c) BadVersion, another leader epoch         -> the controller has decided; wait for its LeaderAndIsr
    (d) connection lost, session expired         -> the write may still take effect; send it again with the same
                                                    version until (a), (b) or (c)
    (e) any other refusal (an ACL, ...)          -> no effect; this partition alone tries again, less and less often
A new role of the partition ends the attempt whatever its outcome, because the LeaderAndIsr is newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.partition import Partition
from klamm.model.errors import BadVersion, ConnectionLoss, NoNode, SessionExpired, ZNodeError, ZooKeeperError
from klamm.model.guard import pause_after
from klamm.model.ids import BrokerId, LeaderEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import ZooKeeper
from klamm.zookeeper.retries import RECONNECT_PAUSE_S
from klamm.zookeeper.znodes import partition_state

log = logging.getLogger(__name__)

Settled = Callable[[Partition, tuple[BrokerId, ...]], None]
"""Called with the previous ISR in the same step in which a new one takes effect."""


class IsrWriter:
    def __init__(self, zk: ZooKeeper, notifications: IsrNotifications, settled: Settled) -> None:
        self._zk = zk
        self._notifications = notifications
        self._settled = settled
        self.failed_updates = 0
        self.shrinks = 0
        self.expansions = 0

    async def write(self, partition: Partition, proposed: tuple[BrokerId, ...]) -> None:
        """The caller sets `pending_isr` in the same step in which it decides."""
        epoch, refusals = partition.leader_epoch, 0
        while self._is_current(partition, epoch, proposed):
            try:
                version = await self._set(partition, proposed)
            except BadVersion:
                try:
                    if await self._read_back(partition, epoch, proposed):
                        return
                except ZooKeeperError as error:
                    refusals += 1
                    await self._refused(partition, refusals, error)
            except NoNode:
                self._lose(partition, epoch, proposed, "the topic is gone")
                return
            except (ConnectionLoss, SessionExpired) as error:
                log.warning(
                    "ISR of %s: the outcome of the write is unknown, trying again: %s", partition.topic_partition, error
                )
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except ZooKeeperError as error:
                refusals += 1
                await self._refused(partition, refusals, error)
            else:
                if self._is_current(partition, epoch, proposed):
                    self._settle(partition, proposed, version)
                return

    async def _set(self, partition: Partition, proposed: tuple[BrokerId, ...]) -> int:
        state = LeaderAndIsr(partition.me, partition.leader_epoch, proposed, partition.controller_epoch)
        stat = await self._zk.set(
            partition_state.path(partition.topic_partition), partition_state.encode(state), partition.zk_version
        )
        return stat.version

    async def _read_back(self, partition: Partition, epoch: LeaderEpoch, proposed: tuple[BrokerId, ...]) -> bool:
        """True when the outcome is known, False to try again."""
        path = partition_state.path(partition.topic_partition)
        try:
            node = await self._zk.get(path)
            found = partition_state.decode(path, node.data)
        except (NoNode, ZNodeError) as error:
            self._lose(partition, epoch, proposed, str(error))
            return True
        except (ConnectionLoss, SessionExpired):
            await asyncio.sleep(RECONNECT_PAUSE_S)
            return False
        if not self._is_current(partition, epoch, proposed):
            return True
        if (found.leader, found.leader_epoch) == (partition.me, epoch):
            self._settle(partition, found.isr, node.stat.version)
        else:
            reason = f"the znode is at leader epoch {found.leader_epoch}, this leader at {epoch}"
            self._lose(partition, epoch, proposed, reason)
        return True

    async def _refused(self, partition: Partition, refusals: int, error: ZooKeeperError) -> None:
        self.failed_updates += 1
        pause = pause_after(refusals)
        log.error("ISR of %s: refused, trying again in %.0f s: %s", partition.topic_partition, pause, error)
        await asyncio.sleep(pause)

    def _is_current(self, partition: Partition, epoch: LeaderEpoch, proposed: tuple[BrokerId, ...]) -> bool:
        return partition.is_leader and partition.leader_epoch == epoch and partition.pending_isr is proposed

    def _settle(self, partition: Partition, isr: tuple[BrokerId, ...], version: int) -> None:
        before = partition.isr
        partition.settle_isr(isr, version)
        self.shrinks += len(isr) < len(before)
        self.expansions += len(isr) > len(before)
        self._notifications.record(partition.topic_partition)
        self._settled(partition, before)

    def _lose(self, partition: Partition, epoch: LeaderEpoch, proposed: tuple[BrokerId, ...], reason: str) -> None:
        self.failed_updates += 1
        if self._is_current(partition, epoch, proposed):
            log.info("ISR of %s was not written, waiting for the controller: %s", partition.topic_partition, reason)
            partition.lose_isr_write()
