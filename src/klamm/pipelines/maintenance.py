"""What klamm's own maintenance of a table records in its commits, so that the audit knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.pipelines.lake_state import LakeError, OffsetRange, parse_object

FORGET, REPLAY, COMPACT, BACKFILL = "forget", "replay", "compact", "backfill"


class LogKey(NamedTuple):
    """One log: a partition in one incarnation of its topic."""

    incarnation: int
    partition: int


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The `userMetadata` of a commit that is not a batch."""

    app: str
    topic: str
    operation: str
    forgotten: Mapping[LogKey, Sequence[OffsetRange]] = field(default_factory=dict)
    """Offsets whose rows were erased."""
    backfilled: Mapping[LogKey, Sequence[OffsetRange]] = field(default_factory=dict)
    """Offsets that were read again, to add the rows that the table lacked."""

    def to_json(self) -> str:
        fields: dict[str, object] = {"app": self.app, "topic": self.topic, "maintenance": self.operation}
        for name, by_log in (("forgotten", self.forgotten), ("backfilled", self.backfilled)):
            if by_log:
                fields[name] = [
                    [*key, *(number for offsets in ranges for number in offsets)]
                    for key, ranges in sorted(by_log.items())
                ]
        return json.dumps(fields, separators=(",", ":"))


def parse_maintenance(user_metadata: str | None) -> Maintenance | None:
    """None for other commits. A malformed object raises LakeError."""
    fields = parse_object(user_metadata)
    if fields is None or "maintenance" not in fields:
        return None
    try:
        forgotten, backfilled = (_ranges(fields.get(name, [])) for name in ("forgotten", "backfilled"))
        return Maintenance(fields["app"], fields["topic"], fields["maintenance"], forgotten, backfilled)
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise LakeError(f"the maintenance metadata is malformed ({e!r}): {str(user_metadata)[:200]}") from e


def _ranges(entries: Sequence[Sequence[int]]) -> dict[LogKey, list[OffsetRange]]:
    return {
        LogKey(int(entry[0]), int(entry[1])): [
            OffsetRange(int(start), int(end)) for start, end in zip(entry[2::2], entry[3::2], strict=True)
        ]
        for entry in entries
    }
