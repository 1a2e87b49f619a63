"""What the dashboard knows at one moment, with the age of everything. Pages are made from one of these, never from a
mixture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from klamm.admin.controller_history import ControllerTerm, Note
from klamm.admin.doctor.finding import Finding
from klamm.dashboard.changes import Entry
from klamm.dashboard.health import Health, health_of
from klamm.dashboard.load import ClusterLoad
from klamm.dashboard.snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    version: int = 0
    """Grows with every change that a page could show."""
    snapshot: ClusterSnapshot | None = None
    preview: ClusterSnapshot | None = None
    """What the brokers say, until there is a snapshot."""
    checked_at: float = 0.0
    """When ZooKeeper last said that the snapshot is still true, on the monotonic clock."""
    trouble: str = ""
    """Why the last look failed; empty if it did not."""
    findings: Sequence[Finding] | None = None
    """None while the doctor looks for the first time."""
    load: ClusterLoad = field(default_factory=ClusterLoad)
    entries: Sequence[Entry] = ()
    """The timeline, newest first."""
    terms: Sequence[ControllerTerm] = ()
    notes: Sequence[Note] = ()
    reads_events: bool = False
    """Whether causes come from klamm's event files."""

    @property
    def shown(self) -> ClusterSnapshot | None:
        """For pages that show only what the preview has too."""
        return self.snapshot or self.preview

    def age_s(self, now: float) -> float:
        return max(now - self.checked_at, 0.0)

    def health(self, now: float) -> Health:
        return health_of(
            self.shown,
            age_s=self.age_s(now),
            trouble=self.trouble,
            silent=self.load.silent,
            findings=self.findings,
            is_preview=self.snapshot is None,
            nearly_full=self.load.nearly_full,
        )
