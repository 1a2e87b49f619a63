"""The leader over the wire: what its answers to a follower mean."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from klamm.broker.leader_endpoint import RemoteLeader
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.ports import Ports
from klamm.wire.apis import ApiKey
from klamm.wire.fetch import FetchPartition
from klamm.wire.messages import decode_request, encode_response, response_class

TP = TopicPartition("orders", 0)
WANTED = [FetchPartition(TP, 5, 100, 0, 0)]


class Connection:
    """Answers with what the test prepares, and notes the sessions of the fetches."""

    broker = BrokerId(2)

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[int, int, int]] = []

    async def request(self, key: ApiKey, version: int, body: Iterable[bytes]) -> memoryview:
        request = decode_request(key, version, b"".join(body))
        named = sum(len(topic.partitions) for topic in request.topics)
        self.asked.append((request.session_id, request.session_epoch, named))
        return memoryview(encode_response(self.answers.pop(0), version))

    async def message(self, key: ApiKey, version: int, request: Any) -> Any:
        return self.answers.pop(0)


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def leader(connection: Connection, clock: Any) -> RemoteLeader:
    ports = Ports(clock, None, None, random.Random(1))  # type: ignore[arg-type]
    leader = RemoteLeader(BrokerId(2), BrokerId(1), BrokerConfig(broker_id=1), ports, lambda broker: None)
    leader._client = connection  # type: ignore[assignment]
    return leader


def fetched(error: ErrorCode = ErrorCode.NONE, session_id: int = 9) -> Any:
    return response_class(ApiKey.FETCH)(throttle_time_ms=0, error_code=error, session_id=session_id, responses=[])


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
async def test_a_lost_session_is_no_error_of_the_partitions(
    leader: RemoteLeader, connection: Connection, error: ErrorCode
) -> None:
    connection.answers = [fetched(), fetched(error, 0), fetched()]
    assert [list(await leader.fetch(WANTED)) for _ in range(3)] == [[], [], []]
    assert connection.asked == [(0, 0, 1), (9, 1, 0), (0, 0, 1)], "the fetch after the loss names everything again"


async def test_another_error_concerns_all_partitions_and_ends_the_session(
    leader: RemoteLeader, connection: Connection
) -> None:
    connection.answers = [fetched(), fetched(ErrorCode.UNKNOWN_SERVER_ERROR), fetched()]
    await leader.fetch(WANTED)
    results = await leader.fetch(WANTED)
    assert [(result.partition, result.error) for result in results] == [(TP, ErrorCode.UNKNOWN_SERVER_ERROR)]
    await leader.fetch(WANTED)
    assert connection.asked[-1] == (0, 0, 1)


@pytest.mark.parametrize("second", [False, True])
async def test_an_end_that_the_leader_refuses_is_an_error(
    leader: RemoteLeader, connection: Connection, second: bool
) -> None:
    """Its offset would be -1, and the follower would truncate to that."""

    def found(error: ErrorCode, offset: int) -> Any:
        cls = response_class(ApiKey.LIST_OFFSETS)
        entry = cls.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
            partition_index=0, error_code=error, offset=offset
        )
        return cls(topics=[cls.ListOffsetsTopicResponse(name=TP.topic, partitions=[entry])])

    refused = found(ErrorCode.FENCED_LEADER_EPOCH, -1)
    connection.answers = [found(ErrorCode.NONE, 3), found(ErrorCode.NONE, 8)]
    assert await leader.log_ends(TP, LeaderEpoch(0)) == (3, 8)
    connection.answers = [found(ErrorCode.NONE, 3), refused] if second else [refused]
    with pytest.raises(KafkaError) as raised:
        await leader.log_ends(TP, LeaderEpoch(0))
    assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH
