"""What ZooKeeper holds of a Kafka cluster, read as a whole: raw nodes, so that a check can judge bad ones too. Values.

A cluster changes while it is read. So a check of two nodes must allow that one is a little older than the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from klamm.model.ports import Node


class RawState(NamedTuple):
    data: bytes | None
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTree:
    read_at_ms: int
    root: Sequence[str] = ()
    """The names below the root or the chroot."""
    below_root: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names one level further down; only read if the root does not look like Kafka's."""
    controller: Node | None = None
    controller_epoch: Node | None = None
    migration: Node | None = None
    brokers: Mapping[str, Node] = field(default_factory=dict)
    """By the name of the node, which need not be a number."""
    topics: Mapping[str, Node] = field(default_factory=dict)
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The names below /brokers/topics/<topic>/partitions."""
    states: Mapping[TopicPartition, RawState] = field(default_factory=dict)
    """One for each partition that a readable assignment names."""
    configured_topics: Sequence[str] = ()
    deletions: Mapping[str, Node] = field(default_factory=dict)
    reassignment: Node | None = None
    notifications: Mapping[str, Node] = field(default_factory=dict)
    """Notifications of ISR changes and of failed log directories, by path."""
    quarantined: Mapping[str, Node] = field(default_factory=dict)
    writers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The identities that may write each topic and state, as `scheme:id`."""
