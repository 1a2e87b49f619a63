"""The few verbs by which handlers meet the controller of the same process; `server` hands in the real one.

Controller and broker are strangers: everything else they tell each other goes over the wire or through ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from klamm.model.errors import KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment


class ControllerApi(Protocol):
    @property
    def is_active(self) -> bool:
        """This broker is the controller."""

    @property
    def active_controller_id(self) -> BrokerId | None:
        """None: nobody is known to lead."""

    @property
    def epoch(self) -> ControllerEpoch: ...

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        """Move leaderships off `broker`; the partitions that it still leads. Raises KafkaError."""

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[BrokerId, ...] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Accepted, or why not; a target of None cancels. Raises KafkaError, NOT_CONTROLLER above all."""

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Assignment]:
        """Those of them, or of all, that are being reassigned. Raises KafkaError."""

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        """Who was elected, or why nobody; without a list only what needed an election. Raises KafkaError."""
