"""The plan as a file: what was planned, for which cluster, from which state, with a digest over all of it.

`partitions` is the document that Kafka's own tool takes, so the same file works with `kafka-reassign-partitions`. The
rest freezes what the plan was made from: execution refuses a cluster that has changed since, and an edited file.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from klamm.admin.balancing.load import Change, Plan, Replicas
from klamm.admin.balancing.planner import PlanRefused

FORMAT: Final = 1
Assignments = Mapping[tuple[str, int], Replicas]


def encode(plan: Plan, *, cluster_id: str, made_at_ms: int) -> bytes:
    document: dict[str, Any] = {
        "version": 1,
        "partitions": [
            {"topic": change.topic, "partition": change.partition, "replicas": list(change.after)}
            for change in plan.changes
        ],
        "klamm": {
            "format": FORMAT,
            "cluster_id": cluster_id,
            "made_at_ms": made_at_ms,
            "before": [[list(change.before), change.size_bytes] for change in plan.changes],
        },
    }
    document["klamm"]["digest"] = _digest(document)
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def is_frozen(data: bytes) -> bool:
    """Whether this is a plan of `klamm reassign plan`, edited or not."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and "klamm" in document


def decode(data: bytes, cluster_id: str) -> list[Change]:
    """Raises PlanRefused if the file was edited, is for another cluster, or is not a plan of `klamm reassign plan`."""
    try:
        document = orjson.loads(data)
        frozen = document["klamm"]
        digest = frozen.pop("digest")
        changes = [
            Change(entry["topic"], entry["partition"], tuple(before), tuple(entry["replicas"]), size)
            for entry, (before, size) in zip(document["partitions"], frozen["before"], strict=True)
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanRefused(f"this is not a plan of `klamm reassign plan`: {type(error).__name__} {error}") from None
    if frozen.get("format") != FORMAT:
        raise PlanRefused(f"plan format {frozen.get('format')} is not known; this klamm reads format {FORMAT}")
    if digest != _digest(document):
        raise PlanRefused("the plan was edited after it was made: make a new one")
    if frozen["cluster_id"] != cluster_id:
        raise PlanRefused(f"the plan was made for cluster {frozen['cluster_id']}, this is cluster {cluster_id}")
    return changes


def changed_since(changes: list[Change], current: Assignments) -> str | None:
    """The first difference between the cluster and what the plan was made from."""
    for change in changes:
        replicas = current.get((change.topic, change.partition))
        if replicas is None:
            return f"{change.topic}-{change.partition} no longer exists"
        if replicas != change.before:
            return f"{change.topic}-{change.partition} is on {list(replicas)} now, it was on {list(change.before)}"
    return None


def _digest(document: Mapping[str, Any]) -> str:
    return sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()
