"""What the handlers of a broker may ask of the controller beside them: each call is an event with its answer.

Whoever asks gets an answer in any case: an event that is dropped, or finds that we do not lead, says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from klamm.controller.events import (
    AlterReassignments,
    ControlledShutdown,
    ControllerEvent,
    ElectLeaders,
    ListReassignments,
)
from klamm.model.errors import KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment


class Calls:
    def __init__(self, enqueue: Callable[[ControllerEvent], None]) -> None:
        self._enqueue = enqueue

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> frozenset[TopicPartition]:
        """Partitions that the broker still leads. Raises KafkaError."""
        reply: asyncio.Future[frozenset[TopicPartition]] = asyncio.get_running_loop().create_future()
        self._enqueue(ControlledShutdown(broker, broker_epoch, reply))
        return await reply

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Per partition None, or why not; a target of None cancels. Raises KafkaError if we are not the controller."""
        reply: asyncio.Future[dict[TopicPartition, KafkaError | None]] = asyncio.get_running_loop().create_future()
        self._enqueue(AlterReassignments(targets, reply))
        return await reply

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        """Those of them, or of all, that are being reassigned. Raises KafkaError."""
        reply: asyncio.Future[dict[TopicPartition, Assignment]] = asyncio.get_running_loop().create_future()
        self._enqueue(ListReassignments(None if partitions is None else frozenset(partitions), reply))
        return await reply

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """Who leads now, or why nobody was elected. Raises KafkaError."""
        reply: asyncio.Future[dict[TopicPartition, BrokerId | KafkaError]] = asyncio.get_running_loop().create_future()
        named = None if partitions is None else frozenset(partitions)
        self._enqueue(ElectLeaders(named, unclean, reply))
        return await reply
