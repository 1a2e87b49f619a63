"""Writes transaction markers to the partitions that this broker leads, for any coordinator.

A marker is acknowledged when it is replicated. On a partition of the groups' offsets it then also completes what the
transaction committed there. Appends of a large request run in slices, each of which starts before the ones before it
are replicated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.broker.appends import ACKS_ALL, Appends
from klamm.broker.coordinators.transactional_offsets import TransactionalOffsets
from klamm.broker.coordinators.transactions.markers import MarkerAnswers, MarkerEntry
from klamm.log.validation import AppendOrigin
from klamm.model.errors import ErrorCode
from klamm.model.ids import CONSUMER_OFFSETS, TopicPartition
from klamm.model.ports import Clock
from klamm.wire.records import ControlType, EndTransactionMarker, build_end_transaction_marker

MARKERS_PER_SLICE: Final = 100


class _Marker(NamedTuple):
    entry: MarkerEntry
    partition: TopicPartition


class MarkerWriter:
    def __init__(self, appends: Appends, clock: Clock, timeout_ms: int, offsets: TransactionalOffsets) -> None:
        self._appends = appends
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._offsets = offsets

    async def write(self, entries: Sequence[MarkerEntry]) -> MarkerAnswers:
        markers = [_Marker(entry, name) for entry in entries for name in entry.partitions]
        answers: MarkerAnswers = {}
        async with asyncio.TaskGroup() as slices:
            for start in range(0, len(markers), MARKERS_PER_SLICE):
                slices.create_task(self._write(markers[start : start + MARKERS_PER_SLICE], answers))
                await asyncio.sleep(0)
        return answers

    async def _write(self, markers: Sequence[_Marker], answers: MarkerAnswers) -> None:
        now_ms = self._clock.wall_ms()
        results = await self._appends.append(
            [(marker.partition, _batch(marker.entry, now_ms)) for marker in markers],
            acks=ACKS_ALL,
            timeout_ms=self._timeout_ms,
            internal=True,
            origin=AppendOrigin.COORDINATOR,
        )
        for (entry, name), result in zip(markers, results, strict=True):
            if result.error is ErrorCode.NONE and name.topic == CONSUMER_OFFSETS:
                self._offsets.complete_transaction(name.partition, entry.producer_id, entry.commit)
            answers[entry.producer_id, name] = result.error

    def close(self) -> None:
        """As an endpoint it holds no connection."""


def _batch(entry: MarkerEntry, now_ms: int) -> bytes:
    kind = ControlType.COMMIT if entry.commit else ControlType.ABORT
    return build_end_transaction_marker(
        EndTransactionMarker(kind, entry.coordinator_epoch),
        timestamp=now_ms,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
    )
