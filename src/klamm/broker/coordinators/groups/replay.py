"""The groups that the log of a partition describes: the later record wins, tombstones remove, markers decide.

This is the same as what happened when the records were written: plain offsets count at once, transactional ones from
their marker on, and of two commits of a partition the later record counts. Pure; `loading` feeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from klamm.broker.coordinators.groups.group import Group
from klamm.broker.coordinators.groups.offsets import Committed
from klamm.broker.coordinators.groups.records import (
    BadRecord,
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from klamm.model.errors import KafkaError
from klamm.model.ids import ProducerId
from klamm.wire.batch import BatchHeader
from klamm.wire.records import ControlType, Record, end_transaction_of

GROUPS_PER_SLICE: Final = 200

LeaveOut = Callable[[int, str], None]
"""Told of each record that cannot be understood, with its offset."""


class Replay:
    def __init__(self, partition: int, leave_out: LeaveOut) -> None:
        self._partition = partition
        self._leave_out = leave_out
        self._values: dict[str, StoredGroup] = {}
        self.groups: dict[str, Group] = {}
        self.open_transactions: dict[ProducerId, set[str]] = {}
        """Producer -> groups with offsets that no marker has decided."""
        self.foreign_keys = 0
        """Records of newer kinds of groups, which were skipped."""

    def add(self, header: BatchHeader, records: list[Record]) -> None:
        if header.is_control:
            for record in records:
                self._end_transaction(ProducerId(header.producer_id), record)
            return
        producer = ProducerId(header.producer_id) if header.is_transactional else None
        for record in records:
            try:
                self._add(record, header.base_offset, producer)
            except BadRecord as error:
                self._leave_out(record.offset, str(error))

    def _add(self, record: Record, record_offset: int, producer: ProducerId | None) -> None:
        match decode_key(record.key):
            case OffsetKey() as key:
                self._add_offset(key, record, record_offset, producer)
            case GroupKey(name):
                if record.value is None:
                    self._values.pop(name, None)
                else:
                    self._values[name] = decode_group(record.value)
            case None:
                self.foreign_keys += 1

    def _add_offset(self, key: OffsetKey, record: Record, record_offset: int, producer: ProducerId | None) -> None:
        value = None if record.value is None else decode_offset(record.value)
        offsets = self._group(key.group).offsets
        if producer is not None:
            self.open_transactions.setdefault(producer, set()).add(key.group)
            if value is None:
                offsets.unstage(producer, key.partition)
            else:
                offsets.stage(producer, {key.partition: value}, record_offset)
        elif value is None:
            self._remove(key)
        else:
            offsets.committed[key.partition] = Committed(record_offset, value)

    def _remove(self, key: OffsetKey) -> None:
        """The tombstone of a removed offset also ends what open transactions had committed before it."""
        offsets = self._group(key.group).offsets
        producers = list(offsets.transactional)
        offsets.remove([key.partition])
        for producer in producers:
            if producer not in offsets.transactional:
                self.open_transactions[producer].discard(key.group)

    def _end_transaction(self, producer: ProducerId, record: Record) -> None:
        try:
            marker = end_transaction_of(record)
        except KafkaError as error:
            self._leave_out(record.offset, str(error))
            return
        if marker.type is None:
            return
        for name in self.open_transactions.pop(producer, ()):
            self.groups[name].offsets.end_transaction(producer, committed=marker.type is ControlType.COMMIT)

    def _group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name, self._partition)
        return group

    def finish(self) -> Iterator[None]:
        """Make groups of the values, and leave out those of which nothing is left, one slice at a time."""
        names = iter(list(self.groups.keys() | self._values.keys()))
        while chunk := list(islice(names, GROUPS_PER_SLICE)):
            for name in chunk:
                self._finish(name)
            yield

    def _finish(self, name: str) -> None:
        value, known = self._values.get(name), self.groups.get(name)
        if value is None and known is not None and known.offsets.is_empty:
            del self.groups[name]
        elif value is not None:
            group = self.groups[name] = Group.loaded(name, self._partition, value)
            if known is not None:
                group.offsets = known.offsets
