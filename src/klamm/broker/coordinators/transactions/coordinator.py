"""The coordinator of the transactional ids whose partition of `__transaction_state` this broker leads.

Each change takes the same steps: decide (`decisions`), mark the id as pending, write, check that the partition is still
owned under the same leader epoch, apply, answer. What is decided but not written never happened. A transaction whose
end is written is told to its partitions by `marker_sender`, and then written as complete.

When the partition moves away, everything known of it is dropped at once. Calls that still wait for their write find
that out afterwards, and answer NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Final

from klamm.broker.coordinators.internal_topic import InternalTopic, fits_a_key
from klamm.broker.coordinators.ownership import Ownership
from klamm.broker.coordinators.transactions import decisions
from klamm.broker.coordinators.transactions.decisions import Decision, Expected, Keep, Refuse, TakeProducerId, Write
from klamm.broker.coordinators.transactions.marker_channel import pause_after
from klamm.broker.coordinators.transactions.marker_sender import MarkerSender
from klamm.broker.coordinators.transactions.markers import TransactionEnd
from klamm.broker.coordinators.transactions.owned_partition import Entry, OwnedPartition
from klamm.broker.coordinators.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    Transaction,
    TransactionState,
    new_transaction,
)
from klamm.broker.coordinators.transactions.transaction_log import TransactionLog
from klamm.broker.producer_ids import ProducerIds
from klamm.model.config import BrokerConfig
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError, ZooKeeperError
from klamm.model.guard import Guard
from klamm.model.ids import LeaderEpoch, ProducerId, TopicPartition
from klamm.model.ports import Clock

LOAD_PAUSE_S: Final = 0.5
COMPLETION_WAIT_S: Final = 0.2
ENDS_PER_SLICE: Final = 100

log = logging.getLogger(__name__)


class TransactionCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        guard: Guard,
        topic: InternalTopic,
        transactions: TransactionLog,
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        self._config = config
        self._clock = clock
        self._guard = guard
        self._topic = topic
        self._log = transactions
        self._producer_ids = producer_ids
        self.markers = markers
        self._ownership = Ownership()
        self._partitions: dict[int, OwnedPartition] = {}
        self.refused_ids = 0
        """Transactional ids that were refused because there are too many."""
        self.completions_waiting = 0
        """Transactions whose markers are written, and whose completion could not be written yet."""
        self.load_ms_max = 0.0
        self.load_ms_sum = 0.0
        self.loads = 0

    # --- leadership ---

    def became_leader(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> None:
        index = partition.partition
        if self._ownership.begin_loading(index, leader_epoch):
            self._drop(index)
            self._guard.start("load of", partition, partial(self._load, index, leader_epoch))

    def resigned(self, partition: TopicPartition, leader_epoch: LeaderEpoch | None) -> None:
        if self._ownership.resign(partition.partition, leader_epoch):
            self._drop(partition.partition)

    def _drop(self, index: int) -> None:
        self._partitions.pop(index, None)
        self.markers.drop(index)

    async def _load(self, index: int, epoch: LeaderEpoch) -> None:
        """A log that cannot be read now is tried again: until then this broker does not serve the partition."""
        began = self._clock.monotonic()
        while self._ownership.is_wanted(index, epoch):
            try:
                await self._topic.read_count()
                loaded = await self._log.load(index, lambda: self._ownership.is_wanted(index, epoch))
            except (KafkaError, ZooKeeperError, ZNodeError) as error:
                log.warning("cannot load %s-%d yet: %s", self._topic.name, index, error)
                await asyncio.sleep(LOAD_PAUSE_S)
                continue
            if self._ownership.loaded(index, epoch):
                self._count_load(self._clock.monotonic() - began)
                await self._serve(OwnedPartition(index, epoch, loaded))
            return

    def _count_load(self, seconds: float) -> None:
        self.loads += 1
        self.load_ms_sum += 1000 * seconds
        self.load_ms_max = max(self.load_ms_max, 1000 * seconds)

    async def _serve(self, owned: OwnedPartition) -> None:
        """Decided transactions may lack markers, whatever their former coordinator has sent. Nothing else touches a
        decided transaction, so the markers may be sent in slices."""
        self._partitions[owned.index] = owned
        prepared = [entry.current for entry in owned.entries.values() if entry.current.state.is_prepared]
        log.info(
            "coordinating %s-%d with %d transactional ids, epoch %d; %d transactions to complete",
            self._topic.name,
            owned.index,
            len(owned.entries),
            owned.epoch,
            len(prepared),
        )
        for number, transaction in enumerate(prepared, 1):
            self._send_markers(owned, transaction)
            if number % ENDS_PER_SLICE == 0:
                await asyncio.sleep(0)
                if not self.owns(owned):
                    return

    # --- requests: they raise KafkaError with the client's answer ---

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Expected | None
    ) -> tuple[ProducerId, int]:
        """The id and epoch of a producer that starts or starts over. Raises CONCURRENT_TRANSACTIONS, and the producer
        asks again, while the transaction that it interrupts is being aborted."""
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        new_id: ProducerId | None = None
        while True:
            owned, entry = self._find(transactional_id)
            now_ms = self._clock.wall_ms()
            if entry is None and self.id_count >= self._config.max_transactional_ids:
                self.refused_ids += 1
                raise KafkaError(ErrorCode.POLICY_VIOLATION)
            if entry is None and new_id is not None:
                entry = Entry(new_transaction(transactional_id, new_id, timeout_ms, now_ms))
                owned.entries[transactional_id] = entry
            if entry is not None:
                decision = decisions.init_producer_id(
                    entry.current,
                    is_pending=entry.is_pending,
                    expected=expected,
                    timeout_ms=timeout_ms,
                    now_ms=now_ms,
                    new_id=new_id,
                )
                if not isinstance(decision, TakeProducerId):
                    break
            new_id = await self._new_producer_id()
        await self.carry_out(owned, entry, decision)
        return entry.current.producer_id, entry.current.producer_epoch

    async def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[TopicPartition]
    ) -> None:
        """While the former transaction is being completed, this waits a moment for it: a client that is refused with
        CONCURRENT_TRANSACTIONS pauses for 20 ms or more, which is longer than most completions take."""

        def decide() -> tuple[OwnedPartition, Entry, Decision]:
            owned, entry = self._known(transactional_id)
            return (
                owned,
                entry,
                decisions.add_partitions(
                    entry.current,
                    is_pending=entry.is_pending,
                    producer_id=producer_id,
                    epoch=epoch,
                    partitions=partitions,
                    now_ms=self._clock.wall_ms(),
                ),
            )

        owned, entry, decision = decide()
        with suppress(TimeoutError):
            async with asyncio.timeout(COMPLETION_WAIT_S):
                while decision == Refuse(ErrorCode.CONCURRENT_TRANSACTIONS):
                    await entry.next_write()
                    owned, entry, decision = decide()
        await self.carry_out(owned, entry, decision)

    async def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Returns when the decision is replicated. The partitions hear of it afterwards."""
        owned, entry = self._known(transactional_id)
        decision = decisions.end(
            entry.current,
            is_pending=entry.is_pending,
            producer_id=producer_id,
            epoch=epoch,
            commit=commit,
            now_ms=self._clock.wall_ms(),
        )
        await self.carry_out(owned, entry, decision)

    # --- questions ---

    @property
    def is_loading(self) -> bool:
        return self._ownership.is_loading

    @property
    def id_count(self) -> int:
        return sum(len(owned.entries) for owned in self._partitions.values())

    @property
    def damaged(self) -> int:
        """Records that loads had to leave out."""
        return self._log.damaged

    def find(self, transactional_id: str) -> Transaction | None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR."""
        _, entry = self._find(transactional_id)
        return None if entry is None else entry.current

    def transactions(self) -> list[Transaction]:
        """All that this broker coordinates."""
        return [entry.current for owned in self._partitions.values() for entry in owned.entries.values()]

    # --- steps of a change ---

    def _find(self, transactional_id: str) -> tuple[OwnedPartition, Entry | None]:
        if not transactional_id or not fits_a_key(transactional_id):
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        name = self._topic.known_partition_of(transactional_id)
        index = None if name is None else name.partition
        self._ownership.check(index)
        assert index is not None
        owned = self._partitions[index]
        return owned, owned.entries.get(transactional_id)

    def _known(self, transactional_id: str) -> tuple[OwnedPartition, Entry]:
        owned, entry = self._find(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return owned, entry

    async def _new_producer_id(self) -> ProducerId:
        try:
            return await self._producer_ids.take()
        except (ZooKeeperError, ZNodeError) as error:
            log.warning("cannot get a producer id now: %s", error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

    async def carry_out(self, owned: OwnedPartition, entry: Entry, decision: Decision) -> None:
        match decision:
            case Refuse(error):
                raise KafkaError(error)
            case Keep():
                return
            case Write(target, answer):
                error = await self._write(owned, entry, target)
                if error is ErrorCode.NONE and target.state.is_prepared:
                    self._send_markers(owned, target)
                if error is not ErrorCode.NONE or answer is not ErrorCode.NONE:
                    raise KafkaError(answer if error is ErrorCode.NONE else error)
            case TakeProducerId():
                raise AssertionError("decided again with a new id before")

    async def _write(self, owned: OwnedPartition, entry: Entry, target: Transaction) -> ErrorCode:
        with entry.writing():
            error = await self._log.write(owned.index, target)
        moved = self._error_if_moved(owned)
        if moved is not ErrorCode.NONE:
            return moved
        if error is ErrorCode.NONE:
            entry.current = target
        elif entry.current.producer_epoch == NO_PRODUCER_EPOCH:
            owned.entries.pop(target.transactional_id, None)  # it was never written, so it does not exist
        return error

    def owned(self) -> list[OwnedPartition]:
        return list(self._partitions.values())

    def owns(self, owned: OwnedPartition) -> bool:
        """The same partition under another epoch is not the same: its state was loaded anew."""
        return self._partitions.get(owned.index) is owned

    def _error_if_moved(self, owned: OwnedPartition) -> ErrorCode:
        if self.owns(owned):
            return ErrorCode.NONE
        try:
            self._ownership.check(owned.index)
        except KafkaError as error:
            return error.code
        return ErrorCode.NOT_COORDINATOR

    # --- markers and completion ---

    def _send_markers(self, owned: OwnedPartition, transaction: Transaction) -> None:
        end = TransactionEnd(
            transaction.transactional_id,
            owned.index,
            owned.epoch,
            transaction.producer_id,
            transaction.producer_epoch,
            commit=transaction.state is TransactionState.PREPARE_COMMIT,
            missing=set(transaction.partitions),
        )
        self.markers.send(end, self._markers_written)

    def _markers_written(self, end: TransactionEnd) -> None:
        self._guard.start("completion of", repr(end.transactional_id), partial(self._complete, end))

    async def _complete(self, end: TransactionEnd) -> None:
        failures = 0
        while True:
            owned = self._partitions.get(end.state_partition)
            if owned is None or owned.epoch != end.coordinator_epoch:
                return  # the next coordinator finds it decided, and completes it
            entry = owned.entries[end.transactional_id]
            if not entry.current.state.is_prepared:
                return
            error = await self._write(owned, entry, decisions.complete(entry.current, self._clock.wall_ms()))
            if error in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                return
            failures += 1
            self.completions_waiting += 1
            try:
                await asyncio.sleep(pause_after(failures))
            finally:
                self.completions_waiting -= 1
