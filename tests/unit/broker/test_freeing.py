"""Wide messages are freed in slices."""

from __future__ import annotations

from itertools import pairwise

import pytest

from klamm.broker.handlers.freeing import OBJECTS_PER_SLICE, freed, is_wide
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

METADATA = request_class(ApiKey.METADATA)
LIST_OFFSETS = request_class(ApiKey.LIST_OFFSETS)
TOPIC = LIST_OFFSETS.ListOffsetsTopic


def test_a_list_loses_one_slice_at_a_time() -> None:
    message = METADATA(topics=[METADATA.MetadataRequestTopic(name=f"t{n}") for n in range(OBJECTS_PER_SLICE * 2 + 1)])
    assert [len(message.topics) for _ in freed(message)] == [OBJECTS_PER_SLICE + 1, 1, 0]


@pytest.mark.parametrize(("topics", "partitions"), [(1, 35_000), (40, 1_000), (30_000, 1), (3, 20_000)])
def test_nested_entries_count(topics: int, partitions: int) -> None:
    entry = TOPIC.ListOffsetsPartition(partition_index=1)
    message = LIST_OFFSETS(topics=[TOPIC(name="t", partitions=[entry] * partitions) for _ in range(topics)])

    def left() -> int:
        return sum(1 + len(topic.partitions) for topic in message.topics)

    counts = [left(), *(left() for _ in freed(message)), left()]
    assert counts[-1] == 0
    assert max(before - after for before, after in pairwise(counts)) <= OBJECTS_PER_SLICE + 1_001


def test_a_dict_and_null() -> None:
    names = dict.fromkeys(range(OBJECTS_PER_SLICE + 1))
    assert len(list(freed(names))) == 2 and not names
    assert list(freed(METADATA(topics=None))) == []


@pytest.mark.parametrize(
    ("topics", "partitions", "expected"),
    [(0, 0, False), (100, 0, False), (101, 0, True), (10, 9, False), (10, 10, True)],
)
def test_entries_of_entries_make_a_message_wide(topics: int, partitions: int, expected: bool) -> None:
    entry = TOPIC.ListOffsetsPartition(partition_index=1)
    message = LIST_OFFSETS(topics=[TOPIC(name="t", partitions=[entry] * partitions) for _ in range(topics)])
    assert is_wide(message, 100) is expected
    assert not is_wide(METADATA(topics=None), 0)
