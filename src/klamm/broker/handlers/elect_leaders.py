"""ElectLeaders (43): preferred or unclean elections, answered when this broker's metadata shows the new leaders.

Version 0 knows preferred elections only and has no error code for the whole request, so such an error is repeated for
each partition. A request without a list means every partition; the answer then leaves out those that need no election.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.broker.handlers.answers import error_fields
from klamm.broker.handlers.services import Services
from klamm.broker.handlers.slices import each, topics_of
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.requests import RequestContext
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

_RESPONSE: Final = response_class(ApiKey.ELECT_LEADERS)
_TOPIC: Final = _RESPONSE.ReplicaElectionResult
_PARTITION: Final = _TOPIC.PartitionResult
PREFERRED: Final = 0
UNCLEAN: Final = 1
VERSION_ELECTION_TYPE: Final = 1


async def handle(services: Services, context: RequestContext, version: int, request: Any) -> Any:
    asked: list[TopicPartition] | None = None
    if request.topic_partitions is not None:
        named = ((entry.topic, p) for entry in request.topic_partitions for p in entry.partitions)
        asked = [TopicPartition(topic, p) async for topic, p in each(named)]
    refused: KafkaError | None = None
    results: dict[TopicPartition, KafkaError | None] = {}
    try:
        if not services.may(context, Operation.ALTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        elected = await services.controller.elect_leaders(asked, _unclean(version, request))
        results = await _wait_for_leaders(services, context, elected, request.timeout_ms)
    except KafkaError as error:
        refused = error
        results = dict.fromkeys(asked or (), error)
    topics = await topics_of(results.items(), _partition)
    return _RESPONSE(
        error_code=refused.code if refused else ErrorCode.NONE,
        replica_election_results=[_TOPIC(topic=topic, partition_result=found) for topic, found in topics.items()],
    )


def _partition(name: TopicPartition, failed: KafkaError | None) -> Any:
    return _PARTITION(partition_id=name.partition, **error_fields(failed))


def _unclean(version: int, request: Any) -> UncleanElection:
    kind = request.election_type if version >= VERSION_ELECTION_TYPE else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}.")
    return UncleanElection(kind == UNCLEAN)


async def _wait_for_leaders(
    services: Services,
    context: RequestContext,
    elected: dict[TopicPartition, BrokerId | KafkaError],
    timeout_ms: int,
) -> dict[TopicPartition, KafkaError | None]:
    """A client that asks for metadata next must see the new leaders."""
    leaders = {name: leader for name, leader in elected.items() if not isinstance(leader, KafkaError)}

    def unknown() -> set[TopicPartition]:
        known = ((name, services.metadata.partition(name)) for name in leaders)
        return {name for name, found in known if found is None or found.leader != leaders[name]}

    await services.metadata.wait_until(lambda: not unknown(), timeout_ms / 1000, context.connection)
    late = unknown()
    timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The leader is elected, but this broker does not know it yet.")
    return {
        name: result if isinstance(result, KafkaError) else timed_out if name in late else None
        for name, result in elected.items()
    }
