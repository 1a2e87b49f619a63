"""What handlers may ask of the controller in the same process; `server` hands in the real one.

Controller and broker share nothing else: they exchange everything else over the wire or through ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from klamm.model.elections import UncleanElection
from klamm.model.errors import KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.model.partition import Assignment


class ControllerApi(Protocol):
    @property
    def is_active(self) -> bool:
        """This broker is the controller."""

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        """Move leaderships off `broker`. Returns the partitions that it still leads, sorted. Raises KafkaError."""

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """For each partition: None if accepted, else why not. A target of None cancels. Raises KafkaError."""

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        """Those of `partitions` that are being reassigned; None means all. Raises KafkaError."""

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, unclean: UncleanElection
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """The leader of each partition, or why the election failed; None means all that need one. Raises KafkaError."""
