"""A reassignment plan in the format of Kafka's tools, and the problems that keep it from being carried out. Pure.

{"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","/data/2"]}]}: `log_dirs` is optional and
names a directory for each replica; `any` leaves the choice to the broker. A plan is started as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

ANY: Final = "any"


class PlannedMove(NamedTuple):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()
    """Empty, or one per replica."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def named_directories(self) -> dict[int, str]:
        """Broker -> directory, without `any`."""
        pairs = zip(self.replicas, self.log_dirs, strict=True) if self.log_dirs else ()
        return {broker: path for broker, path in pairs if path != ANY}


def parse(document: Any) -> list[PlannedMove]:
    """Raises KeyError, TypeError or ValueError if the document is not a plan."""
    return [
        PlannedMove(
            str(entry["topic"]),
            int(entry["partition"]),
            tuple(int(broker) for broker in entry["replicas"]),
            tuple(str(path) for path in entry.get("log_dirs", ())),
        )
        for entry in document["partitions"]
    ]


def problems(
    plan: Sequence[PlannedMove],
    known: Collection[tuple[str, int]],
    brokers: Collection[int],
    directories: Mapping[int, Collection[str]],
) -> list[str]:
    """`directories` has the log directories of the brokers for which the plan names one."""
    found = []
    asked: set[tuple[str, int]] = set()
    for move in plan:
        name = (move.topic, move.partition)
        if name in asked:
            found.append(f"{move} is in the plan twice")
        asked.add(name)
        problem = _problem(move, name in known, brokers, directories)
        if problem:
            found.append(f"{move} {problem}")
    return found


def _problem(
    move: PlannedMove, is_known: bool, brokers: Collection[int], directories: Mapping[int, Collection[str]]
) -> str | None:
    replicas = set(move.replicas)
    if not is_known:
        return "does not exist"
    if not replicas:
        return "would have no replica"
    if len(replicas) < len(move.replicas):
        return "names a broker twice"
    if not replicas <= set(brokers):
        return f"names unknown brokers {sorted(replicas - set(brokers))}"
    if move.log_dirs and len(move.log_dirs) != len(move.replicas):
        return f"names {len(move.log_dirs)} log directories for {len(move.replicas)} replicas"
    for broker, path in move.named_directories().items():
        if path not in directories.get(broker, ()):
            return f"names {path}, which is not a log directory of broker {broker}"
    return None
