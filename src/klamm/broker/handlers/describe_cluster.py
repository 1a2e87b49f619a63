"""DescribeCluster (60): the brokers and the controller, without topics (KIP-700). Clients fall back to Metadata.

Version 1 is served too, because kafka-python cannot read an answer of version 0. It may ask for controllers instead of
brokers; only KRaft has those.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.metadata import NOT_ASKED
from klamm.broker.handlers.services import Services
from klamm.model.errors import ErrorCode
from klamm.model.requests import RequestContext
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.DESCRIBE_CLUSTER)
_ENDPOINT_TYPE_BROKERS: Final = 1


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    if version >= 1 and request.endpoint_type != _ENDPOINT_TYPE_BROKERS:
        return _RESPONSE(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"unknown endpoint type {request.endpoint_type}: ask for brokers (1)",
            cluster_id=services.cluster_id,
        )
    cache = services.metadata
    brokers = [
        _RESPONSE.DescribeClusterBroker(broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in cache.endpoints(context.listener)
    ]
    operations = services.operations(context) if request.include_cluster_authorized_operations else NOT_ASKED
    return _RESPONSE(
        error_code=ErrorCode.NONE,
        error_message=None,
        cluster_id=services.cluster_id,
        controller_id=-1 if cache.controller_id is None else cache.controller_id,
        brokers=brokers,
        authorized_operations=operations,
    )
