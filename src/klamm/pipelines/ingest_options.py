"""What a user asks of an ingest, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from klamm.pipelines.columns import PartitionBy
from klamm.pipelines.decode import Decode
from klamm.pipelines.drift import Drift
from klamm.pipelines.spark_session import SparkOptions


class OnNewLog(StrEnum):
    """What to do with a topic that was recreated or truncated."""

    FAIL = "fail"
    NEW_INCARNATION = "new-incarnation"


def nothing(_line: str) -> None:
    pass


def at_no_point(_point: str, _topic: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class IngestOptions:
    bootstrap_server: str
    topics: Sequence[str]
    lake: str
    """A path, or a URI that Hadoop knows."""
    interval_seconds: float | None = None
    """Seconds between batches; None means to ingest what is there now and then exit."""
    spark: SparkOptions = field(default_factory=SparkOptions)
    max_offsets_per_trigger: int | None = None
    """The limit of one batch; None leaves the limit to `max_bytes`."""
    max_bytes: int = 1 << 30
    """The limit of one batch, estimated from the newest records."""
    name: str = "main"
    on_new_log: OnNewLog = OnNewLog.FAIL
    pattern: str | None = None
    """A regular expression for names of topics, instead of `topics`."""
    take_over: bool = False
    accept_version: int = -1
    """Changes by others up to this version of the table are accepted."""
    group: str | None = None
    max_dead_letters: int | None = None
    partition_by: PartitionBy = PartitionBy.NONE
    decode: Decode = field(default_factory=Decode)
    progress_seconds: float | None = None
    """How often the status of each topic is told."""
    say: Callable[[str], None] = nothing
    at_point: Callable[[str, str], None] = at_no_point
    """Called at named points of a batch, with the topic; tests kill the driver there."""


@dataclass(slots=True)
class TopicReport:
    topic: str
    epoch: int = 0
    incarnation: int = 1
    batches: int = 0
    offsets: int = 0
    dead_letters: int = 0
    drift: Drift = field(default_factory=Drift)
    """How JSON values differed from their schema."""
    waiting: int = 0
    """Offsets behind an open transaction when the ingest ended."""
    ends: Mapping[int, int] = field(default_factory=dict)
    restarts: int = 0
    group_failure: str | None = None
    """Why the last commit to the consumer group failed."""
    failure: str | None = None

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return asdict(self)

    def line(self) -> str:
        """As text."""
        parts = [f"{self.topic}: {self.offsets} offsets in {self.batches} batches, epoch {self.epoch}"]
        if self.incarnation > 1:
            parts.append(f"incarnation {self.incarnation}")
        if self.dead_letters:
            parts.append(f"{self.dead_letters} dead letters")
        if self.drift:
            parts.append(self.drift.line())
        if self.waiting:
            parts.append(f"{self.waiting} offsets wait behind an open transaction")
        if self.failure:
            parts.append(f"FAILED: {self.failure}")
        return ", ".join(parts)
