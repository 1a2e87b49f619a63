"""Ids and epochs. Each has its own type, so that no leader epoch is passed where a broker epoch belongs."""

from __future__ import annotations

from typing import Final, NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""The czxid of /brokers/ids/<id>, which identifies one life of a broker."""
ControllerEpoch = NewType("ControllerEpoch", int)
"""The number in /controller_epoch. Each election adds 1."""
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

NO_LEADER: Final = BrokerId(-1)
LEADER_DURING_DELETE: Final = BrokerId(-2)
"""As a leader in UpdateMetadata, it tells brokers to forget the partition."""
NO_EPOCH: Final = -1
EPOCH_DURING_DELETE: Final = -2
UNKNOWN_BROKER_EPOCH: Final = BrokerEpoch(-1)
INITIAL_CONTROLLER_EPOCH: Final = ControllerEpoch(0)
"""The first content of /controller_epoch. No controller has it: the first one has 1."""
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
"""The coordinators' topics (`broker.coordinators`). Clients do not write them."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
