"""The topics in a consumer's subscription. The coordinator does not understand more of a member's metadata than this.

Versions 1 to 3 append owned partitions, generation and rack (KIP-429, 792, 881), so the fields of version 0 are a
prefix of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from klamm.wire.cursor import Cursor
from klamm.wire.errors import ProtocolError

CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers."""


def topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The union of the subscriptions; None if one of them cannot be parsed."""
    topics: set[str] = set()
    for subscription in subscriptions:
        cursor = Cursor(memoryview(subscription))
        try:
            if cursor.int16() < 0:
                return None
            topics.update(cursor.string() for _ in range(cursor.count(2)))
            cursor.nullable_bytes()
        except ProtocolError:
            return None
    return frozenset(topics)
