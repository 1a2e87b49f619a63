"""The leader over the wire, as a follower asks it: Fetch v11, OffsetForLeaderEpoch v3, ListOffsets v5.

inter.broker.protocol.version determines the versions: brokers do not negotiate with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from klamm.broker.broker_client import BrokerClient
from klamm.broker.fetcher import EpochAnswered, EpochAsked
from klamm.broker.follower_session import SESSION_LOST, FollowerSession
from klamm.log.leader_epochs import EpochEndOffset
from klamm.model.brokers import Endpoint
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, LeaderEpoch, TopicPartition
from klamm.model.ports import Ports
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
from klamm.wire.messages import request_class

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
        self._me = me
        self._config = config
        self._session = FollowerSession()
        timeout = config.replica_socket_timeout_ms / 1000
        self._client = BrokerClient(leader, f"broker-{me}-fetcher", timeout, ports, find)

    @property
    def is_answering(self) -> bool:
        return self._client.is_answering

    async def fetch(self, wanted: Sequence[FetchPartition], max_wait: float | None = None) -> Sequence[FetchResult]:
        """`wanted` keeps its order: the leader fills its answer in the order of the request."""
        config = self._config
        longest = config.replica_fetch_wait_max_ms
        asked = self._session.next(wanted)
        body = encode_follower_request(
            replica_id=self._me,
            max_wait_ms=longest if max_wait is None else min(longest, int(max_wait * 1000)),
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partitions=asked.partitions,
            forgotten=asked.forgotten,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
        )
        answer = await self._client.request(ApiKey.FETCH, FOLLOWER_VERSION, body)
        try:
            error, session_id, results = decode_follower_response(answer)
        except ProtocolError as malformed:
            raise ConnectionError(f"leader {self._client.broker}: {malformed}") from malformed
        if error in SESSION_LOST:
            return ()  # the next fetch is a full one
        if error is not ErrorCode.NONE:
            return [FetchResult(want.partition, error) for want in wanted]
        self._session.answered(session_id, asked)
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
        answer = await self._client.message(ApiKey.OFFSET_FOR_LEADER_EPOCH, EPOCHS_VERSION, request)
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
        answer = await self._client.message(ApiKey.LIST_OFFSETS, OFFSETS_VERSION, request)
        found = answer.topics[0].partitions[0]
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(error_of(found.error_code))
        return int(found.offset)

    def close(self) -> None:
        self._client.close()
