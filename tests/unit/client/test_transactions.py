"""Which open transactions hang: old ones that no coordinator will end on that partition."""

from __future__ import annotations

import pytest

from klamm.client.transactions import CoordinatedTransaction, OpenTransaction, hanging
from klamm.model.ids import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
OPEN = OpenTransaction(A, 7, 0, -1, 10, last_timestamp_ms=1_000)


def coordinated(state: str, *partitions: TopicPartition) -> dict[int, CoordinatedTransaction]:
    return {7: CoordinatedTransaction("tx", 7, 0, state, 60_000, 0, frozenset(partitions))}


@pytest.mark.parametrize(
    ("known", "hangs"),
    [
        ({}, True),
        (coordinated("Ongoing", A), False),
        (coordinated("PrepareCommit", A, B), False),
        (coordinated("PrepareAbort", A), False),
        (coordinated("Ongoing", B), True),
        (coordinated("CompleteCommit"), True),
        (coordinated("Empty"), True),
    ],
)
def test_a_coordinator_ends_what_it_knows(known: dict[int, CoordinatedTransaction], hangs: bool) -> None:
    assert hanging([OPEN], known, now_ms=2_000, older_than_ms=500) == ([OPEN] if hangs else [])


def test_a_young_transaction_may_not_be_known_yet() -> None:
    assert hanging([OPEN], {}, now_ms=2_000, older_than_ms=1_000) == []
