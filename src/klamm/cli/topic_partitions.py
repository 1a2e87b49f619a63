"""The partitions of a topic that a user named, or a clear refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.cli.output import fail
from klamm.model.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient


def partitions_of(client: BlockingClient, topic: str, partition: int | None) -> list[int]:
    """All partitions of the topic. Fails if it does not exist, or does not have this partition."""
    from klamm.client.admin import outcome

    (entry,) = client.run(client.admin.describe_topics([topic]))
    error = outcome(entry)
    if error is not None and not entry.partitions:
        is_missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        fail(f"topic {topic} does not exist" if is_missing else f"topic {topic}: {error}")
    known = sorted(each.partition_index for each in entry.partitions)
    if partition is not None and partition not in known:
        fail(f"topic {topic} has partitions 0 to {max(known)}, not {partition}")
    return known
