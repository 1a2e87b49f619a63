"""The offset ranges that Spark planned for a micro-batch, from the query's checkpoint.

They are the only reliable source: Spark writes them before it calls `foreachBatch`, and uses them to execute a batch
again. Minimum and maximum over the rows would miss transaction markers and compacted offsets at the edges.

`offsets/<n>` has a version line, a metadata line and one line per source with the exclusive ends of batch n. Its starts
are the ends of batch n-1; for batch 0 they are the initial offsets in `sources/0/0`, which begins with a NUL byte. A
partition that is not in the earlier file is new and starts at 0: with `failOnDataLoss` the connector refuses any other.
"""

from __future__ import annotations

import json

from klamm.pipelines.lake_directory import LakeDirectory
from klamm.pipelines.lake_state import LakeError, OffsetRange


def parse_offsets(text: str, topic: str) -> dict[int, int]:
    """The positions of one topic, from the last line of either file.

    >>> parse_offsets('v1\\n{"batchWatermarkMs":0}\\n{"orders":{"0":333,"1":7}}', "orders")
    {0: 333, 1: 7}
    >>> parse_offsets('\\0v1\\n{"orders":{"0":12}}', "orders")
    {0: 12}
    """
    lines = text.lstrip("\0").strip().splitlines()
    if not lines or lines[0] != "v1":
        raise ValueError(f"unknown format {lines[:1]}")
    topics = json.loads(lines[-1])
    if set(topics) != {topic}:
        raise ValueError(f"expected offsets of {topic} alone, found {sorted(topics)}")
    return {int(partition): int(offset) for partition, offset in sorted(topics[topic].items(), key=lambda i: int(i[0]))}


def planned_ranges(checkpoint: LakeDirectory, batch: int, topic: str) -> dict[int, OffsetRange]:
    starts_file = checkpoint.child("offsets", str(batch - 1)) if batch > 0 else checkpoint.child("sources", "0", "0")
    ends_file = checkpoint.child("offsets", str(batch))
    try:
        starts = parse_offsets(starts_file.read_text(), topic)
        ends = parse_offsets(ends_file.read_text(), topic)
    except (OSError, ValueError, AttributeError, TypeError) as e:
        raise LakeError(f"cannot read the ranges of batch {batch} in {checkpoint}: {e}") from e
    return {partition: OffsetRange(starts.get(partition, 0), end) for partition, end in ends.items()}
