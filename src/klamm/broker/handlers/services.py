"""What handlers use: one value, which the broker creates once and passes to every handler."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.admin.placement import PlacementBroker
from klamm.broker.appends import Appends
from klamm.broker.config_admin import ConfigAdmin
from klamm.broker.controller_api import ControllerApi
from klamm.broker.coordinators.groups.coordinator import GroupCoordinator
from klamm.broker.coordinators.groups.zookeeper_offsets import ZooKeeperOffsets
from klamm.broker.coordinators.internal_topic import InternalTopic
from klamm.broker.coordinators.transactions.coordinator import TransactionCoordinator
from klamm.broker.coordinators.transactions.marker_writer import MarkerWriter
from klamm.broker.fetch_sessions import FetchSessions
from klamm.broker.handlers.slices import Pool, at_once
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.quota_admin import QuotaAdmin
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topics import TopicAdmin
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import CONSUMER_OFFSETS
from klamm.model.requests import RequestContext
from klamm.security.authorizer import (
    CLUSTER,
    Authorizer,
    Operation,
    authorized_operations,
    group,
    topic,
    transactional_id,
)
from klamm.security.quotas import Quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    cluster_id: str
    config: BrokerConfig
    metadata: MetadataCache
    replicas: ReplicaManager
    appends: Appends
    reads: Reads
    fetch_sessions: FetchSessions
    topics: TopicAdmin
    offsets_topic: InternalTopic
    transactions_topic: InternalTopic
    configs: ConfigAdmin
    quotas: QuotaAdmin
    client_quotas: Quotas
    groups: GroupCoordinator
    old_offsets: ZooKeeperOffsets
    producer_ids: ProducerIds
    transactions: TransactionCoordinator
    markers: MarkerWriter
    controller: ControllerApi
    authorizer: Authorizer
    pool: Pool = at_once
    """Runs what would hold the loop."""

    def may(self, context: RequestContext, operation: Operation, topic_name: str | None = None) -> bool:
        """Whether the client may do this to a topic, or to the cluster if no topic is given."""
        resource = CLUSTER if topic_name is None else topic(topic_name)
        return self.authorizer.authorize(context, operation, resource)

    def may_group(self, context: RequestContext, operation: Operation, group_id: str) -> bool:
        return self.authorizer.authorize(context, operation, group(group_id))

    def may_transactional_id(self, context: RequestContext, operation: Operation, name: str) -> bool:
        return self.authorizer.authorize(context, operation, transactional_id(name))

    def internal_topic(self, name: str) -> InternalTopic:
        return self.offsets_topic if name == CONSUMER_OFFSETS else self.transactions_topic

    def check_is_controller(self) -> None:
        if not self.controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)

    async def placement_brokers(self) -> list[PlacementBroker]:
        return await self.topics.placement_brokers(self.metadata.brokers.values())

    def operations(self, context: RequestContext, topic_name: str | None = None) -> int:
        """The `authorized_operations` of a topic, or of the cluster if no topic is given (KIP-430)."""
        resource = CLUSTER if topic_name is None else topic(topic_name)
        return authorized_operations(self.authorizer, context, resource)
