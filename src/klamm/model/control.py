"""What the controller orders and what brokers answer, as values: the contents of LeaderAndIsr, StopReplica and
UpdateMetadata, whatever version carried them.
"""

from __future__ import annotations

from typing import NamedTuple

from klamm.model.brokers import Broker
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr


class Sender(NamedTuple):
    """The head of every control request: which controller sends it, and which life of the receiver it is for."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch
    broker_epoch: BrokerEpoch
    """The receiver's epoch, as the sender knows it."""


class PartitionOrder(NamedTuple):
    """One entry of a LeaderAndIsr request."""

    partition: TopicPartition
    state: LeaderAndIsr
    zk_version: int
    assignment: Assignment
    is_new: bool = False


class StopOrder(NamedTuple):
    """One entry of a StopReplica request."""

    partition: TopicPartition
    leader_epoch: int
    """-1 before version 3."""
    delete: bool


class PartitionMetadata(NamedTuple):
    """One entry of an UpdateMetadata request."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


TopicUpdate = tuple[str, list[tuple[int, PartitionMetadata]]]
"""A topic with the numbers and the metadata of its partitions."""


class LeaderAndIsrOrders(NamedTuple):
    sender: Sender
    partitions: list[PartitionOrder]


class StopReplicaOrders(NamedTuple):
    sender: Sender
    partitions: list[StopOrder]


class MetadataUpdate(NamedTuple):
    sender: Sender
    brokers: list[Broker]
    topics: list[TopicUpdate]


class ControlAnswer(NamedTuple):
    """The answer to LeaderAndIsr and StopReplica: an error for the whole request, and one for each partition."""

    error: ErrorCode
    partitions: dict[TopicPartition, ErrorCode]
