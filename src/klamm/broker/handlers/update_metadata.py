"""UpdateMetadata (6): the controller tells what the cluster looks like; clients hear it through Metadata."""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.leader_and_isr import sender_of
from klamm.broker.handlers.services import Services
from klamm.broker.metadata_cache import PartitionMetadata
from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.ids import BrokerId, LeaderEpoch
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.control import iter_partition_states
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.UPDATE_METADATA)
VERSION_LISTENER_NAMES: Final = 3

TopicEntries = list[tuple[str, list[tuple[int, PartitionMetadata]]]]


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    brokers = [_broker(version, live) for live in request.live_brokers]
    error = await services.replicas.update_metadata(sender_of(request), brokers, _topics(request))
    return _RESPONSE(error_code=error)


def _broker(version: int, live: Any) -> Broker:
    if version == 0:
        return Broker(BrokerId(live.id), (Endpoint("PLAINTEXT", live.host, live.port),))
    endpoints = []
    for endpoint in live.endpoints:
        protocol = SecurityProtocol(endpoint.security_protocol)
        name = endpoint.listener if version >= VERSION_LISTENER_NAMES else protocol.name
        endpoints.append(Endpoint(name, endpoint.host, endpoint.port, protocol))
    return Broker(BrokerId(live.id), tuple(endpoints), live.rack)


def _topics(request: Any) -> TopicEntries:
    grouped: dict[str, list[tuple[int, PartitionMetadata]]] = {}
    for topic, entry in iter_partition_states(request):
        grouped.setdefault(topic, []).append((entry.partition_index, _partition(entry)))
    return list(grouped.items())


def _partition(entry: Any) -> PartitionMetadata:
    return PartitionMetadata(
        BrokerId(entry.leader),
        LeaderEpoch(entry.leader_epoch),
        tuple(entry.isr),
        tuple(entry.replicas),
        tuple(getattr(entry, "offline_replicas", None) or ()),
    )
