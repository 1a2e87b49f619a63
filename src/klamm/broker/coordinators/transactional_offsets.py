"""What the transaction markers need from the groups' coordinator."""

from __future__ import annotations

from typing import Protocol

from klamm.model.ids import ProducerId


class TransactionalOffsets(Protocol):
    def complete_transaction(self, offsets_partition: int, producer_id: ProducerId, committed: bool) -> None:
        """The marker is in the log of this partition: publish or drop what the producer has committed to its groups.

        It happens before the marker is acknowledged, so that the producer's next transaction finds it done
        (KAFKA-17507).
        """
