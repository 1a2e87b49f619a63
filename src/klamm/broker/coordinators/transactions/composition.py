"""Puts the parts of the transaction coordinator together."""

from __future__ import annotations

from collections.abc import Callable

from klamm.broker.appends import Appends
from klamm.broker.broker_client import BrokerClient
from klamm.broker.coordinators.internal_topic import InternalTopic
from klamm.broker.coordinators.transactional_offsets import TransactionalOffsets
from klamm.broker.coordinators.transactions.coordinator import TransactionCoordinator
from klamm.broker.coordinators.transactions.marker_channel import MarkerEndpoint
from klamm.broker.coordinators.transactions.marker_endpoint import RemoteMarkers
from klamm.broker.coordinators.transactions.marker_sender import MarkerSender
from klamm.broker.coordinators.transactions.marker_writer import MarkerWriter
from klamm.broker.coordinators.transactions.timers import TransactionTimers
from klamm.broker.coordinators.transactions.transaction_log import TransactionLog
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topics import TopicAdmin
from klamm.model.ids import BrokerId


def transaction_coordinator(
    replicas: ReplicaManager,
    appends: Appends,
    topic: InternalTopic,
    producer_ids: ProducerIds,
    offsets: TransactionalOffsets,
    client_for: Callable[[BrokerId], BrokerClient],
    topics: TopicAdmin,
) -> tuple[TransactionCoordinator, TransactionTimers, MarkerWriter]:
    """The coordinator, its timers, and the writer of markers for the partitions that this broker leads."""
    config, clock, guard = replicas.config, replicas.clock, replicas.guard
    writer = MarkerWriter(appends, clock, config.request_timeout_ms, offsets)

    def endpoint(broker: BrokerId) -> MarkerEndpoint:
        return writer if broker == replicas.me else RemoteMarkers(client_for(broker))

    markers = MarkerSender(replicas.metadata, config.inter_broker_listener, guard, endpoint, topics.partitions_left)
    log = TransactionLog(replicas, appends, clock)
    coordinator = TransactionCoordinator(config, clock, guard, topic, log, producer_ids, markers)
    replicas.leadership_listeners[topic.name] = coordinator
    return coordinator, TransactionTimers(config, clock, guard, log, coordinator), writer
