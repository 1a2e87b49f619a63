"""A Metadata response that is joined from its topics is the one that the codec writes as a whole."""

from __future__ import annotations

import pytest

from klamm.wire.apis import APIS, ApiKey
from klamm.wire.messages import encode_response, response_class
from klamm.wire.metadata import encode_topic, join_response

RESPONSE = response_class(ApiKey.METADATA)
TOPIC = RESPONSE.MetadataResponseTopic
PARTITION = TOPIC.MetadataResponsePartition


@pytest.mark.parametrize("count", [0, 1, 200])
@pytest.mark.parametrize("version", [v for v in range(20) if APIS[ApiKey.METADATA].serves(v)])
def test_joined_as_written(version: int, count: int) -> None:
    topics = [
        TOPIC(
            error_code=0,
            name=f"topic-{n}",
            partitions=[
                PARTITION(partition_index=p, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]) for p in range(n)
            ],
        )
        for n in range(count)
    ]
    brokers = [RESPONSE.MetadataResponseBroker(node_id=1, host="h", port=9092, rack=None)]

    def response(topics: list[object]) -> object:
        return RESPONSE(throttle_time_ms=7, brokers=brokers, cluster_id="c", controller_id=1, topics=topics)

    parts = [encode_topic(topic, version) for topic in topics]
    assert b"".join(join_response(response([]), version, len(parts), parts)) == encode_response(
        response(topics), version
    )
