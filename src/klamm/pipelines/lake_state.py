"""What the table stores about an ingest, and the decision that makes the ingest exactly once.

The table is the only source of truth. Every commit of an ingest carries a JSON object in Delta's `userMetadata`, in the
same atomic commit as the files: who wrote it (epoch, writer), which offset ranges its rows come from, and where each
partition ends after it (`ends`, cumulative). Spark's checkpoint is disposable.

A new process *claims* the table with an empty commit of a higher epoch. The epoch is the high half of Delta's
transaction version, so everything that an older process still has in flight is stale from then on. Invariants:

- The `ends` of a claim are a floor. An older process may commit a batch after the new one has read the state and before
  its claim, so positions copied into the claim may be behind the table. The positions are therefore the maximum of the
  newest *batch* commit and the claims after it, read after the claim, when no older process can add to them. The floor
  keeps them when the batch commits are cleaned from the log.
- A batch is written only if it starts exactly where the table ends, for each of its partitions.
- Each commit names records of the log (anchors) by which the next start and the next batch recognise it. A topic that
  was recreated goes on only as a new *incarnation*: its offsets start again, and rows carry its number.

Nothing here depends on Delta or Spark: another table format only needs another place to keep these objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from klamm.model.errors import KlammError

APP_PREFIX = "klamm:"
FIRST_INCARNATION = 1


class LakeError(KlammError):
    """The reason to stop, in one line for the user."""


class LakeRefusal(LakeError):
    """A reason that does not pass by itself, so a retry is of no use."""


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


def ingest_name(app: str, topic: str) -> str:
    """
    >>> ingest_name("klamm:main:orders", "orders")
    'main'
    """
    return app.removeprefix(APP_PREFIX).removesuffix(f":{topic}")


def txn_version(epoch: int, seq: int) -> int:
    """Delta's transaction version: all versions of an epoch are above those of earlier epochs."""
    return (epoch << 32) + seq


class Anchor(NamedTuple):
    """A record of the log by which the log is recognised later. -1 stands for a number that is not known."""

    offset: int
    leader_epoch: int
    batch_crc: int
    record_crc: int


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """The `userMetadata` of one commit. A claim has no batch and no ranges; its `ends` are only a floor."""

    app: str
    topic: str
    epoch: int
    seq: int
    writer: str
    batch: int | None
    ranges: Mapping[int, OffsetRange]
    ends: Mapping[int, int]
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    """The newest record of each partition below `ends`."""
    origins: Mapping[int, Anchor] = field(default_factory=dict)
    """The first record of each partition: it tells a truncated log from a recreated one."""
    incarnation: int = FIRST_INCARNATION
    dead_letters: int = 0
    """In the batches before this one."""

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
        fields["incarnation"] = self.incarnation
        if self.dead_letters:
            fields["dead_letters"] = self.dead_letters
        for name, anchors in (("anchors", self.anchors), ("origins", self.origins)):
            if anchors:
                fields[name] = {str(p): list(anchor) for p, anchor in sorted(anchors.items())}
        return json.dumps(fields, separators=(",", ":"))


def parse_commit(user_metadata: str | None) -> LakeCommit | None:
    """The object of an ingest; None for other text. A malformed object of an ingest raises LakeError."""
    fields = parse_object(user_metadata)
    if fields is None or "maintenance" in fields:
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
            ends={int(p): int(end) for p, end in (fields.get("ends", {}) if claim else fields["ends"]).items()},
            anchors=_anchors(fields.get("anchors", {})),
            origins=_anchors(fields.get("origins", {})),
            incarnation=int(fields.get("incarnation", FIRST_INCARNATION)),
            dead_letters=int(fields.get("dead_letters", 0)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        raise LakeError(
            f"the commit metadata of {fields['app']} is malformed ({e!r}): {str(user_metadata)[:200]}"
        ) from e


def parse_object(user_metadata: str | None) -> dict[str, Any] | None:
    """The JSON object that klamm wrote into a commit; None for other text."""
    if not user_metadata or APP_PREFIX not in user_metadata:
        return None
    try:
        fields = json.loads(user_metadata)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not str(fields.get("app", "")).startswith(APP_PREFIX):
        return None
    return fields


def _anchors(fields: Mapping[str, Sequence[int]]) -> dict[int, Anchor]:
    return {int(p): Anchor(*(int(number) for number in numbers)) for p, numbers in fields.items()}


@dataclass(frozen=True, slots=True)
class IngestState:
    """Who may write, where each partition ends, and by which records its log is recognised."""

    app: str
    epoch: int
    seq: int
    writer: str
    ends: Mapping[int, int]
    anchors: Mapping[int, Anchor] = field(default_factory=dict)
    origins: Mapping[int, Anchor] = field(default_factory=dict)
    incarnation: int = FIRST_INCARNATION
    dead_letters: int = 0
    has_positions: bool = True
    """A batch commit or a floor was found; without one, `ends` is empty because the log does not tell."""


def fold_state(newest_first: Iterable[LakeCommit]) -> IngestState | None:
    """The newest commit names the writer and the incarnation; positions are the maximum of the newest batch commit and
    the floors of the claims after it. Older commits are not read.
    """
    newest: LakeCommit | None = None
    ends: dict[int, int] = {}
    anchors: dict[int, Anchor] = {}
    origins: dict[int, Anchor] = {}
    told, dead = False, 0
    for commit in newest_first:
        if newest is None:
            newest = commit
        if commit.incarnation != newest.incarnation:
            told = True  # the newest incarnation begins after this commit
            break
        for partition, end in commit.ends.items():
            ends[partition] = max(end, ends.get(partition, 0))
        for partition, anchor in commit.anchors.items():
            if partition not in anchors or anchor.offset > anchors[partition].offset:
                anchors[partition] = anchor
        origins = {**commit.origins, **origins}
        dead = max(dead, commit.dead_letters)
        told = told or bool(commit.ends) or not commit.is_claim
        if not commit.is_claim:
            break
    if newest is None:
        return None
    return IngestState(
        *(newest.app, newest.epoch, newest.seq, newest.writer, ends, anchors, origins, newest.incarnation),
        dead_letters=dead,
        has_positions=told,
    )


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

    The first batch of a table may start at any offset. A partition that is new to a table with positions starts at 0.
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
        end = state.ends.get(partition, 0 if state.ends else planned.start)
        if end != planned.start:
            return BatchRefused(f"partition {partition}: the table ends at {end}, the batch starts at {planned.start}")
    return WriteBatch(
        state.seq + 1, {**state.ends, **{partition: planned.end for partition, planned in ranges.items()}}
    )
