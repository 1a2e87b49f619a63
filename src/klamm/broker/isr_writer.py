"""Writing an ISR to ZooKeeper, with an outcome that is known before it counts.

A conditional set of the state znode: same leader, same leader epoch, the controller epoch that came with leadership.
2.5 does this under the partition's lock; we do not hold the loop, so from the proposal until the outcome is known the
high watermark waits for current and proposed members (reliability 3.3: never acknowledge by an ISR of unknown outcome).

    (a) answered with a Stat                     -> settled, tell the notifications
    (b) BadVersion, znode has our leader epoch   -> what it says is in force: our own write whose answer got lost, or
                                                    an earlier one; adopt it
    (c) BadVersion, another leader epoch         -> the controller has decided; its LeaderAndIsr is on the way; wait
    (d) connection lost, session expired         -> the write may still come into force; send it again under the same
                                                    version until (a), (b) or (c)
A new role of the partition ends the attempt whatever its outcome: the LeaderAndIsr is newer than we are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.broker.isr_notifications import IsrNotifications
from klamm.broker.partition import Partition
from klamm.model.errors import BadVersion, ConnectionLoss, NoNode, SessionExpired, ZNodeError
from klamm.model.ids import BrokerId, LeaderEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import ZooKeeper
from klamm.zookeeper.retries import RECONNECT_PAUSE_S
from klamm.zookeeper.znodes import partition_state

log = logging.getLogger(__name__)

Settled = Callable[[Partition, tuple[BrokerId, ...]], None]
"""Called in the step in which a new ISR came into force, with the ISR before."""


class IsrWriter:
    def __init__(self, zk: ZooKeeper, notifications: IsrNotifications, settled: Settled) -> None:
        self._zk = zk
        self._notifications = notifications
        self._settled = settled
        self.failed_updates = 0
        self.shrinks = 0
        self.expansions = 0

    async def write(self, partition: Partition, proposed: tuple[BrokerId, ...]) -> None:
        """The caller has set `pending_isr` in the step in which it took the decision."""
        epoch = partition.leader_epoch
        while self._is_current(partition, epoch, proposed):
            try:
                version = await self._set(partition, proposed)
            except BadVersion:
                if await self._read_back(partition, epoch, proposed):
                    return
            except NoNode:
                self._lose(partition, epoch, proposed, "the topic is gone")
                return
            except (ConnectionLoss, SessionExpired) as error:
                log.warning(
                    "ISR of %s: outcome of the write unknown, trying again: %s", partition.topic_partition, error
                )
                await asyncio.sleep(RECONNECT_PAUSE_S)
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
            self._lose(partition, epoch, proposed, f"it is at leader epoch {found.leader_epoch}, we are at {epoch}")
        return True

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
            log.info("ISR of %s not written, waiting for the controller: %s", partition.topic_partition, reason)
            partition.lose_isr_write()
