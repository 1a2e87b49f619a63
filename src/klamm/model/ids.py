"""Ids and epochs, each a type of its own so that a leader epoch is never passed where a broker epoch belongs."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""czxid of /brokers/ids/<id>: one life of a broker."""
ControllerEpoch = NewType("ControllerEpoch", int)
"""The integer in /controller_epoch; +1 per election."""
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_LEADER: Final = BrokerId(-1)
LEADER_DURING_DELETE: Final = BrokerId(-2)
"""Told to brokers in UpdateMetadata: forget this partition."""
NO_EPOCH: Final = -1
EPOCH_DURING_DELETE: Final = -2
UNKNOWN_BROKER_EPOCH: Final = BrokerEpoch(-1)
INITIAL_CONTROLLER_EPOCH: Final = ControllerEpoch(0)
"""Of nobody: /controller_epoch is created with it, the first controller has 1."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own: clients neither write them nor see them created on demand."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
