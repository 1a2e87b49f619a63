"""Reads the event files that `telemetry.state_changes` writes: what is new in a file, and an event in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import orjson

from klamm.model.wording import count

TAIL_BYTES: Final = 256 * 1024
"""How much of an event file is read at once: after a storm of changes only the last ones are shown anyway."""
LIST: Final = re.compile(r"\[([^\[\]]*)\]")
QUIET: Final = frozenset({"loop-held", "controller-loaded", "controller-failover"})
DECISIONS: Final = {
    "answer-invalid": "got an answer that it cannot read",
    "assignment-not-written": "could not write an assignment",
    "broker-change": "sees brokers come or go",
    "broker-suspected": "suspects a broker",
    "controlled-shutdown": "moves leaders away from a broker that shuts down",
    "controller-elected": "is elected",
    "controller-epoch-healed": "repairs /controller_epoch",
    "controller-failed": "failed and resigns",
    "controller-healed": "repairs /controller",
    "controller-moved": "takes over",
    "controller-resigned": "resigns",
    "controller-suspected": "suspects the controller",
    "controller-unfit": "stands back, because its fail-overs failed",
    "deletion-blocked": "cannot delete a topic yet",
    "election-failed": "found no leader",
    "leaders-elected": "elects leaders",
    "part-failed": "goes on without a part that failed",
    "quarantine-ended": "reads a znode again that it had set aside",
    "quarantine-kept": "still sets a znode aside",
    "quarantined": "sets a znode aside",
    "reassignment-completed": "completes a reassignment",
    "reassignment-refused": "refuses a reassignment",
    "reassignment-started": "starts a reassignment",
    "reassignment-waits": "waits with a reassignment",
    "request-refused": "was refused by a broker",
    "state-lost": "finds that ZooKeeper has lost states of partitions",
    "suspect-relieved": "moves leaders away from a suspected broker",
    "suspicion-ended": "no longer suspects a broker",
    "topic-created": "creates a topic",
    "topic-deleted": "has deleted a topic",
    "topic-gone": "forgets a topic whose znode is gone",
    "topic-grown": "adds partitions to a topic",
    "write-refused": "may not write a znode",
    "znode-skipped": "skips a znode that it cannot read",
    "zookeeper-auth-failure": "was refused by ZooKeeper",
}
"""What a controller does, after its name."""
OF_OTHERS: Final = frozenset({"controller-suspected"})
"""Decisions of brokers that are not the controller."""
COUNTED: Final = frozenset({"leaders-elected", "reassignment-completed", "reassignment-started", "topic-created"})
"""Decisions whose `partitions` are those that they changed."""


class EventTail:
    """Reads what was appended to an event file since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position: int | None = None

    def news(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                start = 0 if self._position is None or self._position > end else self._position
                file.seek(max(start, end - TAIL_BYTES))
                data = file.read()
        except OSError:
            return []
        whole, _, rest = data.rpartition(b"\n")
        self._position = end - len(rest)
        return [event for line in whole.splitlines() if (event := _parsed(line)) is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event: dict[str, Any] = orjson.loads(line)
        return event if "time_ms" in event else None
    except orjson.JSONDecodeError:
        return None  # the first line of a tail, or of a killed broker


def in_words(event: dict[str, Any]) -> str:
    """A line for people; empty for what they need not see.

    >>> in_words({"kind": "state-change", "role": "controller", "topic": "t", "partition": 0, "from": "OnlinePartition",
    ...           "to": "OnlinePartition", "leader": 2, "isr": [2, 3], "cause": "broker 1 failed"})
    't-0: broker 2 leads, in sync 2,3 (broker 1 failed)'
    """
    if event["kind"] == "state-change":
        if event["role"] != "controller" or "leader" not in event:
            return ""
        members = ",".join(map(str, event["isr"]))
        leads = f"broker {event['leader']} leads" if event["leader"] >= 0 else "no leader"
        return f"{event['topic']}-{event['partition']}: {leads}, in sync {members} ({readable(event['cause'])})"
    if event["event"] in QUIET or event["role"] != "controller":
        return ""
    who = "broker" if event["event"] in OF_OTHERS else "controller"
    return f"{who} {event['broker']} {_decided(event)} ({readable(event['cause'])})"


def _decided(event: dict[str, Any]) -> str:
    """
    >>> _decided({"event": "leaders-elected", "counts": {"partitions": 27}})
    'elects leaders, 27 partitions'
    """
    name = str(event["event"])
    words = DECISIONS.get(name, name)  # a later version may record other decisions
    partitions = event.get("counts", {}).get("partitions") if name in COUNTED else None
    return words if partitions is None else f"{words}, {count(partitions, 'partition')}"


def readable(cause: str) -> str:
    """A cause without the brackets of its lists.

    >>> readable("topic creation ['a', 'b']"), readable("dead [1]")
    ('topic creation a, b', 'dead 1')
    """
    return LIST.sub(lambda found: found[1].replace("'", ""), cause)
