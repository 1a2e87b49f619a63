"""What the table stores about an ingest, and the decision that makes the ingest exactly once.

The table is the only source of truth. Every commit of an ingest carries a JSON object in Delta's `userMetadata`, in the
same atomic commit as the files: who wrote it (epoch, writer), which offset ranges its rows come from, and where each
partition ends after it (`ends`, cumulative). Spark's checkpoint is disposable.

A new process *claims* the table with an empty commit of a higher epoch. The epoch is the high half of Delta's
transaction version, so everything that an older process still has in flight is stale from then on. Invariants:

- A claim has no `ends`. An older process may commit a batch after the new one has read the state and before its claim;
  positions copied into the claim would then be behind the table, and the next batch would be written twice. So the
  positions are those of the newest *batch* commit, read after the claim, when no older process can add to it.
- A batch is written only if it starts exactly where the table ends, for each of its partitions.

Nothing here depends on Delta or Spark: another table format only needs another place to keep these objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from klamm.model.errors import KlammError

APP_PREFIX = "klamm:"


class LakeError(KlammError):
    """The reason to stop, in one line for the user."""


class OffsetRange(NamedTuple):
    """Offsets of one partition, `end` exclusive."""

    start: int
    end: int


def app_id(name: str, topic: str) -> str:
    """
    >>> app_id("main", "orders")
    'klamm:main:orders'
    """
    return f"{APP_PREFIX}{name}:{topic}"


def txn_version(epoch: int, seq: int) -> int:
    """Delta's transaction version: all versions of an epoch are above those of earlier epochs."""
    return (epoch << 32) + seq


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """The `userMetadata` of one commit. A claim has no batch, no ranges and no ends."""

    app: str
    topic: str
    epoch: int
    seq: int
    writer: str
    batch: int | None
    ranges: Mapping[int, OffsetRange]
    ends: Mapping[int, int]

    @property
    def is_claim(self) -> bool:
        return self.batch is None

    def to_json(self) -> str:
        fields: dict[str, object] = {
            "app": self.app,
            "topic": self.topic,
            "epoch": self.epoch,
            "seq": self.seq,
            "writer": self.writer,
        }
        if self.is_claim:
            fields["claim"] = True
        else:
            fields["batch"] = self.batch
            fields["ranges"] = {str(p): list(r) for p, r in sorted(self.ranges.items())}
            fields["ends"] = {str(p): end for p, end in sorted(self.ends.items())}
        return json.dumps(fields, separators=(",", ":"))


def parse_commit(user_metadata: str | None) -> LakeCommit | None:
    """The object of an ingest; None for other text. A malformed object of an ingest raises LakeError."""
    if not user_metadata or APP_PREFIX not in user_metadata:
        return None
    try:
        fields = json.loads(user_metadata)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not str(fields.get("app", "")).startswith(APP_PREFIX):
        return None
    try:
        claim = bool(fields.get("claim", False))
        return LakeCommit(
            app=fields["app"],
            topic=fields["topic"],
            epoch=int(fields["epoch"]),
            seq=int(fields["seq"]),
            writer=fields["writer"],
            batch=None if claim else int(fields["batch"]),
            ranges={} if claim else {int(p): OffsetRange(int(r[0]), int(r[1])) for p, r in fields["ranges"].items()},
            ends={} if claim else {int(p): int(end) for p, end in fields["ends"].items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        raise LakeError(f"the commit metadata of {fields['app']} is malformed ({e!r}): {user_metadata[:200]}") from e


@dataclass(frozen=True, slots=True)
class IngestState:
    """Who may write, and where each partition ends."""

    app: str
    epoch: int
    seq: int
    writer: str
    ends: Mapping[int, int]


def fold_state(newest_first: Iterable[LakeCommit]) -> IngestState | None:
    """The newest commit names the writer, the newest batch commit has the positions. Older commits are not read."""
    newest: LakeCommit | None = None
    for commit in newest_first:
        if newest is None:
            newest = commit
        if not commit.is_claim:
            return IngestState(newest.app, newest.epoch, newest.seq, newest.writer, dict(commit.ends))
    return None if newest is None else IngestState(newest.app, newest.epoch, newest.seq, newest.writer, {})


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """The batch continues the table: write it with this number; `ends` are the positions after it."""

    seq: int
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """The table already ends where the batch ends: Spark executes a committed batch again."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another process claimed the table."""

    by: str


@dataclass(frozen=True, slots=True)
class BatchRefused:
    """The batch does not start where the table ends: writing it would leave a gap or write rows twice."""

    reason: str


BatchDecision: TypeAlias = WriteBatch | AlreadyCommitted | Fenced | BatchRefused


def check_batch(state: IngestState | None, ranges: Mapping[int, OffsetRange], writer: str) -> BatchDecision:
    """Whether `writer` may write a batch with these ranges, given the current state of the table.

    A partition that is new to the table may start at any offset.
    """
    if state is None:
        return BatchRefused("the table has lost the claim of this ingest")
    if state.writer != writer:
        return Fenced(by=f"{state.writer} (epoch {state.epoch})")
    for partition, planned in sorted(ranges.items()):
        if planned.end < planned.start:
            return BatchRefused(
                f"partition {partition}: the batch ends at {planned.end}, before its start {planned.start}"
            )
    if all(state.ends.get(partition) == planned.end for partition, planned in ranges.items()):
        return AlreadyCommitted()
    for partition, planned in sorted(ranges.items()):
        end = state.ends.get(partition, planned.start)
        if end != planned.start:
            return BatchRefused(f"partition {partition}: the table ends at {end}, the batch starts at {planned.start}")
    return WriteBatch(
        state.seq + 1, {**state.ends, **{partition: planned.end for partition, planned in ranges.items()}}
    )
