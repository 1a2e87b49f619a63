"""Messages of the controller and of brokers that obey it, by schemas of our own: kafka-python has none for them.

The classes below read their schema by their own name from `klamm.wire.schemas`. Fields have Kafka's names in snake
case; partition states are flat in old versions (LeaderAndIsr 0-1, UpdateMetadata 0-4, StopReplica 0) and grouped by
topic in newer ones, so the functions here give one form for both. Source: controller 7.2.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from klamm.model.ids import TopicPartition

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schema files by a call that Python 3.11 deprecates; whoever treats warnings as errors
    # could not import it.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.api_message import ApiMessage

    class LeaderAndIsrRequest(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class LeaderAndIsrResponse(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class StopReplicaRequest(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class StopReplicaResponse(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class UpdateMetadataRequest(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class UpdateMetadataResponse(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class ControlledShutdownRequest(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass

    class ControlledShutdownResponse(ApiMessage, load_json="klamm.wire.schemas"):  # type: ignore[misc, call-arg]
        pass


def iter_partition_states(request: Any) -> Iterator[tuple[str, Any]]:
    """Topic and state of each partition in a LeaderAndIsr or UpdateMetadata request, whatever its version."""
    for state in request.ungrouped_partition_states:
        yield state.topic_name, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state


def iter_stopped_replicas(request: Any) -> Iterator[tuple[TopicPartition, int, bool]]:
    """Partition, leader epoch (-1 before version 3) and whether to delete it, of a StopReplica request."""
    for partition in request.ungrouped_partitions:
        yield TopicPartition(partition.topic_name, partition.partition_index), -1, request.delete_partitions
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield TopicPartition(topic.name, index), -1, request.delete_partitions
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.delete_partition
