"""The requests of a transactional producer, on a broker with real logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.coordinators.state_loading import LoadedRecords, StateLoading
from klamm.broker.coordinators.transactions.records import decode_value, encode_key, encode_value
from klamm.broker.coordinators.transactions.transaction import Transaction, TransactionState
from klamm.log.validation import AppendOrigin
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, ProducerId, TopicPartition
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class
from klamm.wire.records import Record, build_batch, read_header

from .whole_broker import CLIENT, STATE, TIME, WholeBroker, broker, running_broker

__all__ = ["broker"]

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OFFSETS = TopicPartition("__consumer_offsets", 0)


def states(broker: WholeBroker) -> list[str]:
    return [
        "tombstone" if record.value is None else decode_value("", record.value).state.name
        for record in broker.records(STATE)
    ]


async def begin(broker: WholeBroker, *names: TopicPartition, transactional_id: str = "tx") -> tuple[int, int]:
    error, producer_id, epoch = await broker.init(transactional_id)
    assert error == 0
    assert set((await broker.add(producer_id, epoch, *names, transactional_id=transactional_id)).values()) <= {0}
    return producer_id, epoch


@pytest.mark.case("TXN-01")
async def test_init_producer_id_without_a_transactional_id(broker: WholeBroker) -> None:
    assert await broker.init(None) == (0, 0, 0)
    assert await broker.init(None, producer_id=0, producer_epoch=0) == (0, 1, 0)
    assert await broker.init("") == (ErrorCode.INVALID_REQUEST, -1, -1)
    for half in ({"producer_id": 5}, {"producer_epoch": 5}):
        assert await broker.init("tx", **half) == (ErrorCode.INVALID_REQUEST, -1, -1)


@pytest.mark.case("TXN-02")
async def test_a_timeout_beyond_the_limit(broker: WholeBroker) -> None:
    assert await broker.init(transaction_timeout_ms=900_001) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, -1, -1)


@pytest.mark.case("TXN-08")
async def test_a_lost_answer_is_repeated(broker: WholeBroker) -> None:
    assert await broker.init() == (0, 0, 0)
    for _ in range(2):
        assert await broker.init(producer_id=0, producer_epoch=0) == (0, 0, 1)
    assert await broker.init(producer_id=0, producer_epoch=5) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1)


@pytest.mark.case("TXN-14")
async def test_one_unknown_partition_refuses_all(broker: WholeBroker) -> None:
    producer_id, epoch = await begin(broker)
    unknown, internal = TopicPartition("nowhere", 0), OFFSETS
    assert await broker.add(producer_id, epoch, A, unknown, B) == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        B: ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
    assert await broker.add(producer_id, epoch, A, internal) == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        internal: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    found = broker.node.transactions.find("tx")
    assert found is not None and found.partitions == frozenset()


@pytest.mark.case("TXN-11")
async def test_one_error_of_the_coordinator_goes_to_all_partitions(broker: WholeBroker) -> None:
    producer_id, epoch = await begin(broker)
    assert await broker.add(producer_id, epoch + 1, A, B) == dict.fromkeys((A, B), ErrorCode.INVALID_PRODUCER_EPOCH)
    assert await broker.add(producer_id, epoch, A, transactional_id="") == {A: ErrorCode.INVALID_REQUEST}
    assert await broker.add(producer_id, epoch, A, transactional_id="x") == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.case("TXN-15")
async def test_an_end_of_a_stranger(broker: WholeBroker) -> None:
    producer_id, epoch = await begin(broker, A)
    assert await broker.end(producer_id, epoch, commit=True, transactional_id="") == ErrorCode.INVALID_REQUEST
    assert await broker.end(producer_id + 1, epoch, commit=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await broker.end(producer_id, epoch - 1, commit=True) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_transaction_from_begin_to_commit(broker: WholeBroker) -> None:
    producer = await begin(broker, A, B)
    assert await broker.produce(A, b"x", b"y", producer=producer, sequence=0) == 0
    assert await broker.end(*producer, commit=True) == 0
    await broker.settled(lambda: states(broker)[-1] == "COMPLETE_COMMIT")
    assert states(broker) == ["EMPTY", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
    for name, offset in ((A, 2), (B, 0)):
        [*_, marker] = broker.records(name)
        assert (marker.offset, marker.key, marker.value) == (offset, b"\0\0\0\1", bytes(6))
    batch = broker.log(B).read(0, 1_000, upper_bound=9, at_least_one=True).records
    header = read_header(batch)
    assert (len(batch), header.is_transactional, header.is_control, header.base_sequence) == (78, True, True, -1)
    assert await broker.end(*producer, commit=True) == 0
    assert await broker.end(*producer, commit=False) == ErrorCode.INVALID_TXN_STATE


async def test_offsets_join_the_transaction(broker: WholeBroker) -> None:
    producer = await begin(broker)
    assert await broker.add_offsets(*producer, "group") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await broker.lead("__consumer_offsets", 3)
    assert await broker.add_offsets(*producer, "group") == 0
    [joined] = broker.node.transactions.find("tx").partitions  # type: ignore[union-attr]
    assert joined.topic == "__consumer_offsets"


# --- rights ---


async def test_rights(broker: WholeBroker) -> None:
    producer = await begin(broker, A)
    denied = broker.guard.denied
    denied.add((Operation.WRITE, "tx"))
    refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await broker.init() == (refusal, -1, -1)
    assert await broker.add(*producer, B) == {B: refusal}
    assert await broker.add_offsets(*producer, "group") == refusal
    assert await broker.end(*producer, commit=True) == refusal
    assert await broker.produce(A, b"x", producer=producer, sequence=0) == refusal
    denied.clear()
    denied.add((Operation.READ, "group"))
    assert await broker.add_offsets(*producer, "group") == ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied.clear()
    denied.add((Operation.WRITE, "orders"))
    assert await broker.add(*producer, B) == {B: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    denied.clear()
    denied.add((Operation.IDEMPOTENT_WRITE, "kafka-cluster"))
    assert await broker.init(None) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1, -1)


async def test_only_brokers_write_markers(broker: WholeBroker) -> None:
    refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await broker.write_markers((7, 0), [A], context=CLIENT) == [refusal]
    assert broker.records(A) == []


# --- markers ---


@pytest.mark.parametrize("version", [0, 1])
async def test_markers_of_another_coordinator(broker: WholeBroker, version: int) -> None:
    assert await broker.produce(A, b"x", producer=(7, 0), sequence=0) == 0
    assert broker.log(A).last_stable_offset == 0
    unknown = TopicPartition("nowhere", 0)
    answers = await broker.write_markers((7, 0), [A, B, unknown], version=version)
    assert answers == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.log(A).last_stable_offset == broker.log(A).high_watermark == 2


async def test_fenced_markers(broker: WholeBroker) -> None:
    assert await broker.produce(A, b"x", producer=(7, 3), sequence=0) == 0
    assert await broker.write_markers((7, 2), [A]) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await broker.write_markers((7, 4), [A], commit=False, coordinator_epoch=9) == [0]
    assert await broker.write_markers((7, 4), [A], coordinator_epoch=8) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert await broker.write_markers((7, 4), [A], coordinator_epoch=9) == [0]  # repeated: appended, nothing changes
    assert await broker.produce(A, b"x", producer=(7, 3), sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_thousand_markers_in_one_request(broker: WholeBroker) -> None:
    answers = await broker.write_markers((7, 0), [A] * 1_000)
    assert answers == [0] * 1_000
    assert broker.log(A).high_watermark == 1_000


async def test_a_marker_completes_the_offsets_before_it_is_acknowledged(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.lead("__consumer_offsets")
    completed: list[Any] = []
    writer = broker.node.markers
    monkeypatch.setattr(writer._offsets, "complete_transaction", lambda *call: completed.append(call), raising=False)
    assert await broker.write_markers((7, 0), [A, OFFSETS], commit=False) == [0, 0]
    assert completed == [(0, 7, False)]
    await broker.lead("__consumer_offsets", epoch=1, leader=2, isr=2)
    assert await broker.write_markers((7, 0), [OFFSETS]) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert len(completed) == 1


# --- the data path ---


async def test_produce_checks(broker: WholeBroker) -> None:
    producer = (7, 1)
    assert await broker.produce(A, b"x", producer=producer, sequence=0) == 0
    refused = await broker.produce(A, b"x", producer=producer, sequence=1, transactional=False)
    assert refused == ErrorCode.INVALID_TXN_STATE
    assert await broker.produce(A, b"x", producer=producer, sequence=5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await broker.produce(A, b"x", producer=(7, 0), sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    without_id = await broker.produce(A, b"x", producer=producer, sequence=1, transactional_id=None)
    assert without_id == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.case("TXN-31")
async def test_a_read_committed_reader_stops_at_the_first_open_transaction(broker: WholeBroker) -> None:
    one, two = (7, 0), (8, 0)
    assert await broker.produce(A, b"x1", producer=two, sequence=0) == 0
    assert await broker.write_markers(two, [A]) == [0]
    assert await broker.produce(A, b"a", b"b", producer=one, sequence=0, time=TIME + 3_600_000) == 0
    assert await broker.produce(A, b"x2", producer=two, sequence=1) == 0
    assert await broker.write_markers(two, [A]) == [0]
    committed, everything = await broker.fetch(A, committed=True), await broker.fetch(A, committed=False)
    assert (committed.last_stable_offset, committed.high_watermark, committed.aborted_transactions) == (2, 6, [])
    assert everything.aborted_transactions is None and len(everything.records) > len(committed.records)
    assert await broker.list_offset(A, -1, committed=True) == 2
    assert await broker.list_offset(A, -1, committed=False) == 6
    assert await broker.list_offset(A, TIME + 3_600_001, committed=True) == -1
    assert await broker.list_offset(A, TIME + 3_600_001, committed=False) == 3
    assert await broker.write_markers((7, 1), [A], commit=False) == [0]
    aborted = await broker.fetch(A, committed=True)
    assert aborted.last_stable_offset == 7
    assert [(entry.producer_id, entry.first_offset) for entry in aborted.aborted_transactions] == [(7, 2)]


# --- fail-over ---


@pytest.mark.case("TXN-29")
async def test_the_state_survives_a_restart(tmp_path: Path, zk: Any) -> None:
    async with running_broker(tmp_path, zk=zk) as first:
        await first.lead("__transaction_state")
        await first.lead("orders", 2)
        committed = await begin(first, A, transactional_id="committed")
        assert await first.end(*committed, commit=True, transactional_id="committed") == 0
        await first.settled(lambda: states(first)[-1] == "COMPLETE_COMMIT")
        opened = await begin(first, A, transactional_id="open")
        await first.add(*opened, B, transactional_id="open")
    async with running_broker(tmp_path, zk=zk) as second:
        assert await second.init("open") == (ErrorCode.NOT_COORDINATOR, -1, -1)
        await second.lead("orders", 2, epoch=1)
        await second.lead("__transaction_state", epoch=1)
        states_now = {entry.transactional_id: entry for entry in second.node.transactions.transactions()}
        assert states_now["committed"].state is TransactionState.COMPLETE_COMMIT
        assert (states_now["open"].state, states_now["open"].partitions) == (TransactionState.ONGOING, {A, B})
        assert await second.end(*opened, commit=True, transactional_id="open") == 0
        await second.lead("__transaction_state", epoch=2, leader=2, isr=2)
        assert await second.init("open") == (ErrorCode.NOT_COORDINATOR, -1, -1)


@pytest.mark.case("TXN-29")
async def test_one_bad_record_is_left_out_alone(tmp_path: Path, zk: Any) -> None:
    good = Transaction("good", ProducerId(7), 3, 60_000, TransactionState.EMPTY, last_update_ms=1)
    later = Transaction("good", ProducerId(7), 4, 60_000, TransactionState.EMPTY, last_update_ms=1)
    async with running_broker(tmp_path, zk=zk) as first:
        await first.lead("__transaction_state")
        for record in (
            Record(encode_key("good"), encode_value(good)),
            Record(encode_key("bad"), b"\0\0\1"),
            Record(b"\xff", b""),
            Record(encode_key("gone"), encode_value(good)),
            Record(encode_key("gone"), None),
            Record(encode_key("good"), encode_value(later)),
        ):
            first.log(STATE).append_as_leader(build_batch([record]), 0)
        await first.lead("__transaction_state", epoch=1, leader=2, isr=2)
        await first.lead("__transaction_state", epoch=2)
        assert [entry.transactional_id for entry in first.node.transactions.transactions()] == ["good"]
        assert await first.init("good") == (0, 7, 5)


@pytest.mark.case("TXN-18")
@pytest.mark.parametrize(
    ("error", "answer"),
    [(3, 15), (19, 15), (20, 15), (7, 15), (6, 16), (56, 16), (10, -1), (18, -1), (2, 2)],
)
async def test_errors_of_the_log_become_the_clients(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch, error: int, answer: int
) -> None:
    producer = await begin(broker, A)
    before = broker.node.transactions.find("tx")
    append = broker.node.appends.append

    async def failing(*args: Any, **options: Any) -> Any:
        return [result._replace(error=ErrorCode(error)) for result in await append(*args, **options)]

    monkeypatch.setattr(broker.node.appends, "append", failing)
    assert await broker.end(*producer, commit=True) == answer
    assert broker.node.transactions.find("tx") == before
    monkeypatch.undo()
    assert await broker.end(*producer, commit=False) == 0


async def test_metrics(broker: WholeBroker) -> None:
    await begin(broker, A)
    value = broker.metrics.value
    assert value("klamm.server", "transaction-coordinator-metrics", "transactional-id-count") == 1
    assert value("kafka.server", "transaction-coordinator-metrics", "partition-load-time-max") > 0
    for name in ("UnknownDestinationQueueSize", "LogAppendRetryQueueSize"):
        assert value("kafka.coordinator.transaction", "TransactionMarkerChannelManager", name) == 0


# --- questions (KIP-664) ---


async def test_a_coordinator_describes_its_transactions(broker: WholeBroker) -> None:
    producer_id, epoch = await begin(broker, A, B)
    answer = await broker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["tx", "unknown", "secret"])
    found, unknown, _ = answer.transaction_states
    assert (found.error_code, found.transactional_id, found.transaction_state) == (0, "tx", "Ongoing")
    assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (producer_id, epoch, 60_000)
    assert found.transaction_start_time_ms >= TIME
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("orders", [0, 1])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    broker.guard.denied |= {(Operation.DESCRIBE, "secret"), (Operation.DESCRIBE, "orders")}
    answer = await broker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["secret", "tx"])
    secret, found = answer.transaction_states
    assert (secret.error_code, found.topics) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, [])


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["committed", "open"]),
        ({"state_filters": ["Ongoing"]}, ["open"]),
        ({"state_filters": ["CompleteCommit", "Dead"]}, ["committed"]),
        ({"state_filters": ["Nonsense"]}, []),
        ({"producer_id_filters": [1]}, ["open"]),
        ({"duration_filter": 0}, ["open"]),
        ({"duration_filter": 3_600_000}, []),
    ],
)
async def test_a_coordinator_lists_its_transactions(
    broker: WholeBroker, filters: dict[str, Any], expected: list[str]
) -> None:
    done = await begin(broker, A, transactional_id="committed")
    assert await broker.end(*done, commit=True, transactional_id="committed") == 0
    await broker.settled(lambda: states(broker)[-1] == "COMPLETE_COMMIT")
    await begin(broker, A, transactional_id="open")
    await asyncio.sleep(0.002)
    asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
    answer = await broker.ask(ApiKey.LIST_TRANSACTIONS, 1, **asked)
    assert sorted(entry.transactional_id for entry in answer.transaction_states) == expected
    assert answer.unknown_state_filters == [name for name in asked["state_filters"] if name == "Nonsense"]
    broker.guard.denied.add((Operation.DESCRIBE, "open"))
    answer = await broker.ask(ApiKey.LIST_TRANSACTIONS, 1, **asked)
    assert "open" not in [entry.transactional_id for entry in answer.transaction_states]


async def test_a_partition_describes_its_producers(broker: WholeBroker) -> None:
    assert await broker.produce(A, b"x", b"y", producer=(7, 3), sequence=0) == 0
    assert await broker.produce(A, b"z", producer=(8, 0), sequence=0) == 0
    assert await broker.write_markers((8, 0), [A], coordinator_epoch=4) == [0]
    cls = request_class(ApiKey.DESCRIBE_PRODUCERS).TopicRequest
    topics = [cls(name="orders", partition_indexes=[0]), cls(name="nowhere", partition_indexes=[0])]
    known, unknown = (await broker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)).topics
    [partition] = known.partitions
    assert [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
        for p in partition.active_producers
    ] == [(7, 3, 1, -1, 0), (8, 0, 0, 4, -1)]
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.guard.denied.add((Operation.READ, "orders"))
    [known] = (await broker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics[:1])).topics
    assert known.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


# --- offsets in a transaction ---


async def commit_offset(broker: WholeBroker, producer: tuple[int, int], offset: int, metadata: str) -> int:
    cls = request_class(ApiKey.TXN_OFFSET_COMMIT)
    topic_class = cls.TxnOffsetCommitRequestTopic
    entry = topic_class.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=4, committed_metadata=metadata
    )
    answer = await broker.ask(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        transactional_id="tx",
        group_id="group",
        producer_id=producer[0],
        producer_epoch=producer[1],
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[topic_class(name="orders", partitions=[entry])],
    )
    return int(answer.topics[0].partitions[0].error_code)


async def committed_offset(broker: WholeBroker) -> tuple[int, int, str]:
    cls = request_class(ApiKey.OFFSET_FETCH)
    answer = await broker.ask(
        ApiKey.OFFSET_FETCH,
        7,
        group_id="group",
        topics=[cls.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])],
        require_stable=False,
    )
    [entry] = answer.topics[0].partitions
    return entry.committed_offset, entry.committed_leader_epoch, entry.metadata


@pytest.mark.case("TXN-35")
async def test_offsets_become_visible_with_the_commit(broker: WholeBroker) -> None:
    await broker.lead("__consumer_offsets")
    await broker.settled(lambda: not broker.node.groups.registry.ownership.is_loading)
    producer = await begin(broker)
    for commit, expected in ((False, (-1, -1, "")), (True, (42, 4, "where I was"))):
        assert await broker.add_offsets(*producer, "group") == 0
        assert await commit_offset(broker, producer, 42, "where I was") == 0
        assert await committed_offset(broker) == (-1, -1, "")
        assert await broker.end(*producer, commit=commit) == 0
        await broker.settled(lambda: states(broker)[-1].startswith("COMPLETE"))
        assert await committed_offset(broker) == expected


async def test_a_decision_is_carried_out_when_it_is_replicated(broker: WholeBroker) -> None:
    """A coordinator that dies before that leaves no trace of it, and its successor may decide differently."""
    decided = Transaction("tx", ProducerId(5), 0, 60_000, TransactionState.PREPARE_COMMIT, frozenset({A}), TIME, TIME)
    await broker.lead("__transaction_state", epoch=1, leader=2, isr=2)
    await broker.lead("__transaction_state", epoch=2, isr=2)
    record = build_batch([Record(encode_key("tx"), encode_value(decided), TIME)])
    broker.node.replicas.partitions[STATE].append_as_leader(record, acks=1, origin=AppendOrigin.COORDINATOR)
    await broker.lead("__transaction_state", epoch=3, leader=2, isr=2)
    await broker.lead("__transaction_state", epoch=4, isr=2, wait=False)
    await asyncio.sleep(0.05)
    assert broker.node.transactions.is_loading and broker.records(A) == []
    broker.node.replicas.follower_fetched(STATE, BrokerId(2), broker.log(STATE).log_end_offset, 0)
    await broker.settled(lambda: broker.records(A))


async def test_one_partition_is_read_at_a_time(broker: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices of fifty partitions in one turn would hold the loop."""
    reading = most = 0
    read = StateLoading.read

    async def counted(loading: StateLoading) -> AsyncIterator[LoadedRecords]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        async for piece in read(loading):
            yield piece
        reading -= 1

    monkeypatch.setattr(StateLoading, "read", counted)
    await broker.lead(STATE.topic, 3, epoch=5)
    assert (most, reading) == (1, 0)
