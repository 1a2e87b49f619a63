"""How far a consumer group is behind, and what a reset of its commits would do. Pure.

A reset is planned first and shown; it never leaves the log: an offset outside it becomes its start or end, and the plan
says so. The coordinator accepts it only while the group has no members.

>>> t = TopicPartition("t", 0)
>>> [(lag.lag, lag.expired) for lag in lags({t: 5}, {t: (7, 20)})]
[(15, 2)]
>>> plan_reset(ResetTo(Kind.SHIFT, -100), {t: (7, 20)}, {t: 12})
[PlannedReset(partition=TopicPartition(topic='t', partition=0), before=12, after=7, note='the log begins at 7')]
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition
from klamm.model.wording import count

Ranges = Mapping[TopicPartition, tuple[int, int]]
"""The first offset of each log and the one after its last."""
INACTIVE: Final = frozenset({"Empty", "Dead"})


class ResetRefused(KlammError):
    """The reset must not be executed; the message says why and what to do."""


class PartitionLag(NamedTuple):
    partition: TopicPartition
    committed: int | None
    start: int | None
    """None, like `end` and `lag`, if the topic does not exist any more."""
    end: int | None
    lag: int | None
    expired: int
    """Records between the commit and the start of the log: retention removed them before the group read them."""
    member: str
    """Client id of the member that reads it; empty if none does."""


class Kind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"
    SHIFT = "shift"


class ResetTo(NamedTuple):
    kind: Kind
    value: int = 0
    """An offset, a number of records (negative goes back), or a time in milliseconds."""


class PlannedReset(NamedTuple):
    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""

    @property
    def skipped(self) -> int:
        """Records that the group will then never read."""
        return 0 if self.before is None else max(0, self.after - self.before)

    @property
    def again(self) -> int:
        """Records that the group will read a second time."""
        return 0 if self.before is None else max(0, self.before - self.after)


def lags(
    committed: Mapping[TopicPartition, int], ranges: Ranges, members: Mapping[TopicPartition, str] | None = None
) -> list[PartitionLag]:
    """Every partition that has a commit or a member, in order."""
    members = members or {}
    found = []
    for name in sorted({*committed, *members}):
        offset = committed.get(name)
        start, end = ranges.get(name, (None, None))
        lag = None if offset is None or end is None else max(0, end - offset)
        expired = 0 if offset is None or start is None else max(0, start - offset)
        found.append(PartitionLag(name, offset, start, end, lag, expired, members.get(name, "")))
    return found


def total_lag(entries: list[PartitionLag]) -> int:
    return sum(entry.lag or 0 for entry in entries)


def check_inactive(group: str, state: str, member_count: int) -> None:
    """Raises ResetRefused. A consumer that runs would overwrite the new offsets with its own."""
    if state not in INACTIVE or member_count:
        raise ResetRefused(
            f"group {group} is {state} with {count(member_count, 'member')}: stop its consumers first, "
            "because they would commit their own offsets again"
        )


def plan_reset(
    to: ResetTo,
    ranges: Ranges,
    committed: Mapping[TopicPartition, int],
    at_time: Mapping[TopicPartition, int] | None = None,
) -> list[PlannedReset]:
    """One entry for each partition of `ranges`. `at_time` has the first offset at or after `to.value`, -1 for none."""
    return [_planned(to, name, *ranges[name], committed.get(name), at_time or {}) for name in sorted(ranges)]


def _planned(
    to: ResetTo, name: TopicPartition, start: int, end: int, before: int | None, at_time: Mapping[TopicPartition, int]
) -> PlannedReset:
    match to.kind:
        case Kind.EARLIEST:
            return PlannedReset(name, before, start)
        case Kind.LATEST:
            return PlannedReset(name, before, end)
        case Kind.TIME:
            found = at_time[name]
            return (
                PlannedReset(name, before, found)
                if found >= 0
                else PlannedReset(name, before, end, "no record is that new")
            )
        case Kind.SHIFT:
            if before is None:
                raise ResetRefused(f"the group has no offset for {name} that could be shifted: use another target")
            wanted = before + to.value
        case Kind.OFFSET:
            wanted = to.value
    if wanted < start:
        return PlannedReset(name, before, start, f"the log begins at {start}")
    if wanted > end:
        return PlannedReset(name, before, end, f"the log ends at {end}")
    return PlannedReset(name, before, wanted)
