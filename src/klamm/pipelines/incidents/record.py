"""A record: what one entry of a log says, in the same fields for every version of Kafka and for klamm.

Brokers repeat themselves: one state is sent to every broker, and a lost connection is reported many times a second. So
records are folded before they are analysed: records that differ only in their time become one, with the earliest time
and a count. `occasion` says per kind how far apart they may be. Both engines fold with these rules, so both give the
same tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

SECOND_MS: Final = 1000

Key = tuple[object, ...]


class Record(NamedTuple):
    t: int
    """Milliseconds since 1970. Before the correction of clocks, in the zone of the broker that wrote it."""
    broker: int | None
    """The broker that wrote it, if the entry names it."""
    kind: str
    epoch: int | None = None
    """Controller epoch."""
    topic: str | None = None
    partition: int | None = None
    leader: int | None = None
    leader_epoch: int | None = None
    version: int | None = None
    """Version of the partition's state znode: a total order of its states that no clock can disturb."""
    brokers: tuple[int, ...] | None = None
    """The ISR, or the brokers that the entry is about."""
    replicas: tuple[int, ...] | None = None
    """The assigned replicas, or all live brokers."""
    other: int | None = None
    """A second broker: the receiver of a request, the replica that left, the peer that does not answer."""
    number: int | None = None
    """A duration, an offset, a correlation id or a setting, by kind."""
    text: str | None = None
    times: int = 1
    """How many entries said so."""


PER_10_SECONDS: Final = frozenset(
    {
        *(
            "part.online",
            "part.isr_cut",
            "isrctl.updated",
            "isr.updated",
            "lai.sent",
            "lai.recv",
            "um.sent",
            "um.cached",
        ),
        *("lead.start", "follow.start", "min.isr", "config", "version"),
    }
)
"""A state of a partition is a fact, however often it is told. Not one record for ever: a topic that is created again
has the same first states."""

PER_SECOND: Final = frozenset({"net.lost", "append.refused", "isr.rejected", "isr.stale", "part.failed", "zk.timeout"})
"""Repeated by the thousand when something is wrong: one record a second, with a count."""

PER_HOUR: Final = frozenset({"unknown"})


def occasion(kind: str, t: int) -> int:
    """Records of one kind with equal values and equal occasions are one."""
    if kind in PER_10_SECONDS:
        return t // (10 * SECOND_MS)
    if kind in PER_SECOND:
        return t // SECOND_MS
    if kind in PER_HOUR:
        return t // (3600 * SECOND_MS)
    return t


def fold(folded: dict[Key, Record], records: Iterable[Record]) -> None:
    """Add records to what is folded already."""
    for record in records:
        t, *said, times = record
        key = (occasion(record.kind, t), *said)
        known = folded.get(key)
        if known is None:
            folded[key] = record
        else:  # not _replace, which takes four times as long
            folded[key] = Record._make((min(known.t, t), *said, known.times + times))


def in_order(records: Iterable[Record]) -> list[Record]:
    """A total order, so that both engines and every run give the same tables."""
    return sorted(records, key=lambda r: (r.t, r.kind, *("" if v is None else str(v) for v in r[1:14])))
