"""Compares the records that brokers acknowledged with those that a consumer then reads: none may be lost.

Each record carries its number within its partition. After the faults all records are read back: every acknowledged
record must be there once, at the acknowledged offset, and within a partition numbers must rise with offsets. A record
whose send failed may be there or not, because its outcome is unknown. librdkafka may report a record as acknowledged
without an offset, if the answer was lost and it concludes that the record was written; such a record must be there
once, at any offset.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import Message, Producer

from klamm.client.blocking import blocking_client
from klamm.client.cluster import ClusterClient
from klamm.client.reader import EARLIEST, LATEST, Reader, offsets_at
from klamm.model.ids import TopicPartition

DELIVERY_TIMEOUT_MS = 120_000
READ_TIMEOUT = 60.0


@dataclass
class History:
    """The acknowledged offset of each record, by partition and number, and the failures."""

    acknowledged: dict[int, dict[int, int | None]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    last_acknowledged_at: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self.acknowledged.values())

    @property
    def without_offset(self) -> int:
        return sum(offset is None for offsets in self.acknowledged.values() for offset in offsets.values())

    def on_delivery(self, number: int, error: ConfluentError | None, message: Message) -> None:
        if error is not None:
            self.failed[error.name()] += 1
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        self.acknowledged.setdefault(partition, {})[number] = offset
        self.last_acknowledged_at[partition] = time.monotonic()


@contextmanager
def steady_producer(bootstrap: str, topic: str, partitions: int, records_per_second: int) -> Iterator[History]:
    """Run an idempotent acks=all producer at a steady rate for the length of the `with`, and flush it at the end."""
    history = History()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
        }
    )
    stop = threading.Event()

    def send_steadily() -> None:
        started, sent = time.monotonic(), 0
        while not stop.is_set():
            due = int((time.monotonic() - started) * records_per_second)
            while sent < due:
                number, partition = divmod(sent, partitions)
                _send(producer, history, topic, partition, number)
                sent += 1
            producer.poll(0.005)

    thread = threading.Thread(target=send_steadily, name="steady-producer", daemon=True)
    thread.start()
    try:
        yield history
    finally:
        stop.set()
        thread.join()
        left = producer.flush(DELIVERY_TIMEOUT_MS / 1000)
        assert left == 0, f"{left} records neither acknowledged nor failed"


def _send(producer: Producer, history: History, topic: str, partition: int, number: int) -> None:
    while True:
        try:
            producer.produce(
                topic,
                partition=partition,
                value=str(number).encode(),
                on_delivery=lambda error, message: history.on_delivery(number, error, message),
            )
            return
        except BufferError:
            producer.poll(0.1)  # the local queue is full while a partition has no leader


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of every record up to the current end of the log, by partition."""
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    with blocking_client(bootstrap, timeout=READ_TIMEOUT) as client:
        return client.run(_read_all(client.cluster, places))


async def _read_all(cluster: ClusterClient, places: list[TopicPartition]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {place.partition: [] for place in places}
    ends = await offsets_at(cluster, places, LATEST)
    reader = Reader(cluster, await offsets_at(cluster, places, EARLIEST))
    try:
        while any(reader.positions[place] < ends[place] for place in places):
            for place, record in await reader.poll():
                found[place.partition].append((record.offset, int(record.value or b"")))
    finally:
        await reader.close()
    return found


def anomalies(history: History, found: dict[int, list[tuple[int, int]]]) -> list[str]:
    """What is wrong. Empty if every acknowledged record is there once, at its offset and in order."""
    wrong: list[str] = []
    for partition, records in sorted(found.items()):
        acknowledged = history.acknowledged.get(partition, {})
        at = dict(records)
        times = Counter(number for _, number in records)
        numbers = [number for _, number in sorted(records)]
        wrong += [
            f"lost: {partition}/{number} acknowledged at offset {offset}, found {at.get(offset)}"
            for number, offset in sorted(acknowledged.items())
            if offset is not None and at.get(offset) != number
        ]
        wrong += [
            f"lost: {partition}/{number} acknowledged without an offset, found nowhere"
            for number, offset in sorted(acknowledged.items())
            if offset is None and number not in times
        ]
        wrong += [f"duplicate: {partition}/{number} found {n} times" for number, n in sorted(times.items()) if n > 1]
        wrong += [
            f"reordered: {partition}/{later} before {partition}/{earlier}"
            for later, earlier in pairwise(numbers)
            if earlier < later
        ]
    return wrong
