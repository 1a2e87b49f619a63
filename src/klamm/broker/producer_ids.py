"""Producer ids, unique in the cluster: blocks of a thousand, taken from ZooKeeper by a conditional set.

A write whose answer was lost is recognised by its content: the block names this broker and begins at the expected id.
A broker that stops loses the unused ids of its block, which is cheap; an id handed out twice would lose records.
"""

from __future__ import annotations

import asyncio

from klamm.model.errors import BadVersion, ErrorCode, KafkaError
from klamm.model.ids import BrokerId, ProducerId
from klamm.model.ports import ZooKeeper
from klamm.model.settings import LONG_MAX
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import producer_id_block
from klamm.zookeeper.znodes.producer_id_block import BLOCK_SIZE, ProducerIdBlock, block_from


class ProducerIds:
    def __init__(self, zk: ZooKeeper, me: BrokerId) -> None:
        self._zk = zk
        self._me = me
        self._next = 0
        self._last = -1
        self._taking = asyncio.Lock()

    async def take(self) -> ProducerId:
        """Raises ZooKeeperError, and KafkaError when all ids of the cluster are used up: no id is given twice."""
        async with self._taking:
            if self._next > self._last:
                block = await self._take_block()
                self._next, self._last = block.first, block.last
            taken = ProducerId(self._next)
            self._next += 1
            return taken

    async def _take_block(self) -> ProducerIdBlock:
        """If the connection breaks in the middle, the set may have been applied, and the block must then not be
        mistaken for another broker's."""
        unsure: ProducerIdBlock | None = None

        async def attempt() -> ProducerIdBlock:
            nonlocal unsure
            while True:
                node = await self._zk.get(producer_id_block.PATH)
                latest = producer_id_block.decode(producer_id_block.PATH, node.data)
                if unsure is not None and latest == unsure:
                    return unsure
                if latest is not None and latest.last > LONG_MAX - BLOCK_SIZE:
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"no producer ids are left after {latest.last}")
                unsure = latest.next_for(self._me) if latest is not None else block_from(self._me, 0)
                try:
                    await self._zk.set(producer_id_block.PATH, producer_id_block.encode(unsure), node.stat.version)
                    return unsure
                except BadVersion:
                    continue

        return await until_connected(attempt)
