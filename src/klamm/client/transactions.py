"""Transactions of a cluster: what coordinators and partitions know, and how a hanging one is ended (KIP-664).

A transaction hangs if a partition has it open and no coordinator will end it: its producer wrote after the coordinator
had ended the transaction, or the coordinator's record is lost. It holds back every read-committed consumer of the
partition. `abort` writes the marker that the coordinator would have written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from klamm.client.cluster import TRANSACTION, ClusterClient
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class

OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
NO_OFFSET: Final = -1


class ListedTransaction(NamedTuple):
    coordinator: int
    transactional_id: str
    producer_id: int
    state: str


class OpenTransaction(NamedTuple):
    """A transaction that a partition has open."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class CoordinatedTransaction(NamedTuple):
    """A transaction as its coordinator describes it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: frozenset[TopicPartition]


def hanging(
    opened: Iterable[OpenTransaction],
    coordinated: Mapping[int, CoordinatedTransaction],
    *,
    now_ms: int,
    older_than_ms: int,
) -> list[OpenTransaction]:
    """Those of `opened` that are old and that no coordinator (by producer id) will end on that partition. Pure."""
    found = []
    for entry in opened:
        known = coordinated.get(entry.producer_id)
        will_end = known is not None and known.state in OPEN_STATES and entry.partition in known.partitions
        if not will_end and entry.last_timestamp_ms < now_ms - older_than_ms:
            found.append(entry)
    return found


class TransactionAdmin:
    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    async def list_all(
        self, states: Collection[str] = (), producer_ids: Collection[int] = ()
    ) -> list[ListedTransaction]:
        """Asks all coordinators. Raises KafkaError if one of them cannot answer."""
        cls = request_class(ApiKey.LIST_TRANSACTIONS)
        request = cls(state_filters=[*states], producer_id_filters=[*producer_ids])
        found = []
        for broker in sorted(self._cluster.brokers):
            answer = await self._cluster.ask_broker(broker, ApiKey.LIST_TRANSACTIONS, request)
            _raise_if(answer.error_code, f"broker {broker}")
            if answer.unknown_state_filters:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown states: {answer.unknown_state_filters}")
            found += [
                ListedTransaction(broker, entry.transactional_id, entry.producer_id, entry.transaction_state)
                for entry in answer.transaction_states
            ]
        return found

    async def describe(self, transactional_id: str) -> CoordinatedTransaction:
        request = request_class(ApiKey.DESCRIBE_TRANSACTIONS)(transactional_ids=[transactional_id])
        answer = await self._cluster.ask_coordinator(
            transactional_id, ApiKey.DESCRIBE_TRANSACTIONS, request, TRANSACTION
        )
        [entry] = answer.transaction_states
        _raise_if(entry.error_code, f"transactional id {transactional_id}")
        return CoordinatedTransaction(
            entry.transactional_id,
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_state,
            entry.transaction_timeout_ms,
            entry.transaction_start_time_ms,
            frozenset(TopicPartition(topic.topic, index) for topic in entry.topics for index in topic.partitions),
        )

    async def open_on(self, topic: str) -> list[OpenTransaction]:
        """The open transactions of all partitions of a topic."""
        [entry] = (await self._cluster.metadata([topic])).topics
        _raise_if(entry.error_code, f"topic {topic}")
        found = []
        for partition in sorted(p.partition_index for p in entry.partitions):
            found += await self._open_on(TopicPartition(topic, partition))
        return found

    async def _open_on(self, name: TopicPartition) -> list[OpenTransaction]:
        cls = request_class(ApiKey.DESCRIBE_PRODUCERS)
        request = cls(topics=[cls.TopicRequest(name=name.topic, partition_indexes=[name.partition])])

        async def attempt() -> Any:
            leader = await self._cluster.leader_of(*name)
            answer = await self._cluster.ask_broker(leader, ApiKey.DESCRIBE_PRODUCERS, request)
            [partition] = answer.topics[0].partitions
            _raise_if(partition.error_code, str(name))
            return partition

        partition = await self._cluster.repeating(f"DescribeProducers of {name}", attempt)
        return [
            OpenTransaction(
                name,
                entry.producer_id,
                entry.producer_epoch,
                entry.coordinator_epoch,
                entry.current_txn_start_offset,
                entry.last_timestamp,
            )
            for entry in partition.active_producers
            if entry.current_txn_start_offset != NO_OFFSET
        ]

    async def hanging_on(self, topic: str, *, now_ms: int, older_than_ms: int) -> list[OpenTransaction]:
        opened = await self.open_on(topic)
        if not opened:
            return []
        listed = await self.list_all(producer_ids={entry.producer_id for entry in opened})
        coordinated = {entry.producer_id: await self.describe(entry.transactional_id) for entry in listed}
        return hanging(opened, coordinated, now_ms=now_ms, older_than_ms=older_than_ms)

    async def abort(self, transaction: OpenTransaction) -> None:
        """Write the marker that ends it. Brokers accept it only on the listener that they use among themselves."""
        name = transaction.partition
        cls = request_class(ApiKey.WRITE_TXN_MARKERS)
        marker_class = cls.WritableTxnMarker
        marker = marker_class(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[marker_class.WritableTxnMarkerTopic(name=name.topic, partition_indexes=[name.partition])],
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )

        async def attempt() -> None:
            leader = await self._cluster.leader_of(*name)
            answer = await self._cluster.ask_broker(leader, ApiKey.WRITE_TXN_MARKERS, cls(markers=[marker]))
            _raise_if(answer.markers[0].topics[0].partitions[0].error_code, str(name))

        await self._cluster.repeating(f"WriteTxnMarkers to {name}", attempt)


def _raise_if(code: int, about: str) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(error_of(code), about)
