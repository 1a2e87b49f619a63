"""The leader over the wire, as a follower asks it: Fetch v11, OffsetForLeaderEpoch v3, ListOffsets v5.

One connection carries one request at a time. inter.broker.protocol.version determines the versions: brokers do not
negotiate with each other. Each connect looks up the address, because a leader that restarts may have a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from klamm.broker.fetcher import EpochAnswered, EpochAsked
from klamm.log.leader_epochs import EpochEndOffset
from klamm.model.brokers import Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.ports import Ports
from klamm.net.client import BrokerConnection
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.errors import ProtocolError, error_of
from klamm.wire.fetch import (
    FOLLOWER_VERSION,
    FetchPartition,
    FetchResult,
    decode_follower_response,
    encode_follower_request,
)
from klamm.wire.messages import decode_response, encode_request, request_class

EPOCHS_VERSION: Final = 3
OFFSETS_VERSION: Final = 5
LATEST: Final = -1
EARLIEST: Final = -2


class RemoteLeader:
    def __init__(
        self,
        leader: BrokerId,
        me: BrokerId,
        config: BrokerConfig,
        ports: Ports,
        find: Callable[[BrokerId], Endpoint | None],
    ) -> None:
        self._leader = leader
        self._me = me
        self._config = config
        self._ports = ports
        self._find = find
        self._connection: BrokerConnection | None = None
        self._timeout = config.replica_socket_timeout_ms / 1000

    async def fetch(self, wanted: Sequence[FetchPartition]) -> Sequence[FetchResult]:
        config = self._config
        body = encode_follower_request(
            replica_id=self._me,
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partitions=sorted(wanted),
        )
        answer = await self._request(ApiKey.FETCH, FOLLOWER_VERSION, body)
        try:
            error, results = decode_follower_response(answer)
        except ProtocolError as malformed:
            raise ConnectionError(f"leader {self._leader}: {malformed}") from malformed
        if error is not ErrorCode.NONE:
            return [FetchResult(want.partition, error) for want in wanted]
        return results

    async def epoch_ends(self, asked: Sequence[EpochAsked]) -> Sequence[EpochAnswered]:
        cls = request_class(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        topic_class = cls.OffsetForLeaderTopic
        topics = [
            topic_class(
                topic=topic,
                partitions=[
                    topic_class.OffsetForLeaderPartition(
                        partition=question.partition.partition,
                        current_leader_epoch=question.current_leader_epoch,
                        leader_epoch=question.epoch,
                    )
                    for question in questions
                ],
            )
            for topic, questions in by_topic(sorted(asked), attrgetter("partition")).items()
        ]
        request = cls(replica_id=self._me, topics=topics)
        answer = await self._message(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCHS_VERSION, request)
        return [
            EpochAnswered(
                TopicPartition(topic.topic, end.partition),
                error_of(end.error_code),
                EpochEndOffset(LeaderEpoch(end.leader_epoch), end.end_offset),
            )
            for topic in answer.topics
            for end in topic.partitions
        ]

    async def log_ends(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> tuple[int, int]:
        start = await self._list_offset(partition, leader_epoch, EARLIEST)
        return start, await self._list_offset(partition, leader_epoch, LATEST)

    async def _list_offset(self, partition: TopicPartition, leader_epoch: LeaderEpoch, timestamp: int) -> int:
        cls = request_class(ApiKey.LIST_OFFSETS)
        entry = cls.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
        )
        request = cls(
            replica_id=self._me,
            isolation_level=0,
            topics=[cls.ListOffsetsTopic(name=partition.topic, partitions=[entry])],
        )
        answer = await self._message(ApiKey.LIST_OFFSETS, OFFSETS_VERSION, request)
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(error_of(found.error_code))
        return int(found.offset)

    async def _message(self, key: ApiKey, version: int, request: Any) -> Any:
        answer = await self._request(key, version, [encode_request(request, version)])
        try:
            return decode_response(key, version, answer)
        except ProtocolError as malformed:
            raise ConnectionError(f"leader {self._leader}: {malformed}") from malformed

    async def _request(self, key: ApiKey, version: int, body: Sequence[bytes]) -> memoryview:
        if self._connection is None or not self._connection.is_connected:
            self._connection = await self._connect()
        return await self._connection.request(key, version, body, timeout=self._timeout)

    async def _connect(self) -> BrokerConnection:
        endpoint = self._find(self._leader)
        if endpoint is None:
            raise ConnectionError(f"broker {self._leader} is not alive, as far as this broker knows")
        client_id = f"broker-{self._me}-fetcher"
        connection = BrokerConnection(self._ports.network, endpoint.host, endpoint.port, client_id, self._ports.clock)
        await connection.connect(self._timeout)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
