"""What a broker's handlers may ask the controller of the same process: each call becomes an event.

Every caller gets an answer: if the event is dropped, or this broker is not the controller, the call raises KafkaError.
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
from klamm.model.elections import UncleanElection
from klamm.model.errors import KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment


class ControllerCalls:
    def __init__(self, enqueue: Callable[[ControllerEvent], None]) -> None:
        self._enqueue = enqueue

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        """Move leaderships off the broker. Returns the partitions that it still leads. Raises KafkaError."""
        reply: asyncio.Future[list[TopicPartition]] = asyncio.get_running_loop().create_future()
        self._enqueue(ControlledShutdown(broker, broker_epoch, reply))
        return await reply

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """For each partition: None if accepted, else why not. A target of None cancels. Raises KafkaError."""
        reply: asyncio.Future[dict[TopicPartition, KafkaError | None]] = asyncio.get_running_loop().create_future()
        self._enqueue(AlterReassignments(targets, reply))
        return await reply

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        """Those of `partitions` that are being reassigned; None means all. Raises KafkaError."""
        reply: asyncio.Future[dict[TopicPartition, Assignment]] = asyncio.get_running_loop().create_future()
        self._enqueue(ListReassignments(None if partitions is None else frozenset(partitions), reply))
        return await reply

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, unclean: UncleanElection
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """The leader of each partition, or why the election failed; None means all that need one. Raises KafkaError."""
        reply: asyncio.Future[dict[TopicPartition, BrokerId | KafkaError]] = asyncio.get_running_loop().create_future()
        named = None if partitions is None else frozenset(partitions)
        self._enqueue(ElectLeaders(named, unclean, reply))
        return await reply
