"""What handlers use: one value, which the broker creates once and passes to every handler."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.admin.placement import PlacementBroker
from klamm.broker.appends import Appends
from klamm.broker.controller_api import ControllerApi
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topics import TopicAdmin
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.requests import RequestContext
from klamm.security.authorizer import CLUSTER, Authorizer, Operation, topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    cluster_id: str
    config: BrokerConfig
    metadata: MetadataCache
    replicas: ReplicaManager
    appends: Appends
    reads: Reads
    topics: TopicAdmin
    producer_ids: ProducerIds
    controller: ControllerApi
    authorizer: Authorizer

    def may(self, context: RequestContext, operation: Operation, topic_name: str | None = None) -> bool:
        """Whether the client may do this to a topic, or to the cluster if no topic is given."""
        resource = CLUSTER if topic_name is None else topic(topic_name)
        return self.authorizer.authorize(context, operation, resource)

    def check_is_controller(self) -> None:
        if not self.controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)

    async def placement_brokers(self) -> list[PlacementBroker]:
        """Live brokers that may get replicas: all but dedicated controllers."""
        brokers = sorted(self.metadata.brokers.values())
        dedicated = await self.topics.dedicated_controllers([broker.id for broker in brokers])
        return [PlacementBroker(broker.id, broker.rack) for broker in brokers if broker.id not in dedicated]
