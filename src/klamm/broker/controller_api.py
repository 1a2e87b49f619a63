"""The few verbs by which handlers meet the controller of the same process; `server` hands in the real one.

Controller and broker are strangers: everything else they tell each other goes over the wire or through ZooKeeper.
"""

from __future__ import annotations

from typing import Protocol

from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition


class ControllerApi(Protocol):
    @property
    def is_active(self) -> bool:
        """This broker is the controller."""

    @property
    def active_controller_id(self) -> BrokerId | None: ...

    @property
    def epoch(self) -> ControllerEpoch: ...

    async def controlled_shutdown(self, broker: BrokerId, broker_epoch: BrokerEpoch) -> list[TopicPartition]:
        """Move leaderships off `broker`; the partitions that it still leads. Raises KafkaError."""
