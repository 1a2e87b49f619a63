"""What brokers acknowledged to a producer, to compare with what they have afterwards.

history = ProducerHistory()
producer.produce("orders", b"1", on_delivery=history.on_delivery)      # confluent-kafka
history.acknowledged("orders", partition=0, offset=7, value=b"1")      # any other client
...
cluster.assert_nothing_lost(history)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.client.reader import EARLIEST, LATEST, Reader, offsets_at
from klamm.model.ids import TopicPartition

LISTED_MAX = 10


class ProducerHistory:
    def __init__(self) -> None:
        self.records: dict[TopicPartition, dict[int, bytes | None]] = {}
        """The acknowledged values by partition and offset."""
        self.failed: Counter[str] = Counter()
        """Sends that failed, by reason. Such a record may be there or not: its outcome is unknown."""

    @property
    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(map(len, self.records.values()))

    def acknowledged(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self.records.setdefault(TopicPartition(topic, partition), {})[offset] = value

    def on_delivery(self, error: Any, message: Any) -> None:
        """A delivery callback of confluent-kafka."""
        if error is not None:
            self.failed[error.name()] += 1
        else:
            self.acknowledged(message.topic(), message.partition(), message.offset(), message.value())


async def lost_records(history: ProducerHistory, bootstrap: str) -> list[str]:
    """A line for each acknowledged record that is not at its offset."""
    client = ClusterClient(addresses(bootstrap), client_id="klamm-testing")
    async with client.running():
        found = await _read_all(client, list(history.records))
    return [
        f"{place} offset {offset}: acknowledged {value!r}, found {found[place].get(offset, 'nothing')!r}"
        for place, records in sorted(history.records.items())
        for offset, value in sorted(records.items())
        if found[place].get(offset, b"nothing") != value
    ]


async def _read_all(
    client: ClusterClient, places: list[TopicPartition]
) -> dict[TopicPartition, dict[int, bytes | None]]:
    found: dict[TopicPartition, dict[int, bytes | None]] = {place: {} for place in places}
    ends = await offsets_at(client, places, LATEST)
    reader = Reader(client, await offsets_at(client, places, EARLIEST))
    try:
        while any(reader.positions[place] < ends[place] for place in places):
            for place, record in await reader.poll():
                found[place][record.offset] = None if record.value is None else bytes(record.value)
    finally:
        await reader.close()
    return found
