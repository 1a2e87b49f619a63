"""The lag of consumer groups over time, as long as someone looks at them, and planned resets. Bounded."""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from klamm.admin.group_lag import PlannedReset

GROUPS_MAX: Final = 100
SAMPLES_MAX: Final = 300
RESETS_MAX: Final = 20


class LagSample(NamedTuple):
    time_ms: int
    lag: int


class GroupLags:
    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[LagSample]] = OrderedDict()
        self._resets: OrderedDict[str, tuple[str, list[PlannedReset]]] = OrderedDict()

    def add(self, group: str, sample: LagSample) -> list[LagSample]:
        """The samples of the group, oldest first. The group that was not looked at for the longest time goes first."""
        samples = self._samples.setdefault(group, deque(maxlen=SAMPLES_MAX))
        self._samples.move_to_end(group)
        samples.append(sample)
        if len(self._samples) > GROUPS_MAX:
            self._samples.popitem(last=False)
        return list(samples)

    def keep_reset(self, group: str, planned: list[PlannedReset]) -> str:
        """Remember what a visitor was shown; the name is for the form that confirms it."""
        name = secrets.token_urlsafe(9)
        self._resets[name] = (group, planned)
        if len(self._resets) > RESETS_MAX:
            self._resets.popitem(last=False)
        return name

    def reset(self, group: str, name: str) -> list[PlannedReset] | None:
        found = self._resets.get(name)
        return found[1] if found is not None and found[0] == group else None
