"""A producer with acks=all that reports the acknowledgements of each partition, for measuring fail-over.

It behaves like the Java client: it sends one request with all partitions of a leader, asks for metadata after an error
or a lost connection, and retries after a `retry.backoff.ms` of 100. It sends one record at a time per partition and one
request at a time per broker, to keep the load small. (librdkafka sends one request per partition, and a broker handles
one request at a time per connection: with 2,000 partitions the figure would measure that queue.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.wire import produce
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_response, encode_request, request_class
from klamm.wire.records import Record, build_batch

RETRY_BACKOFF_S: Final = 0.1
PACE_S: Final = 2.0
"""Seconds between two records of a partition."""
TURNS: Final = 10
PRODUCE_VERSION: Final = 7
METADATA_VERSION: Final = 7
REQUEST_TIMEOUT_MS: Final = 30_000
CLIENT_ID: Final = "bench"

Address = tuple[str, int]


class SteadyProducer:
    def __init__(self, bootstrap: Sequence[Address], topics: Sequence[str]) -> None:
        self._bootstrap = list(bootstrap)
        self._topics = list(topics)
        self._leaders: dict[TopicPartition, int] = {}
        self._waiting: dict[int, dict[TopicPartition, float]] = {}
        """By leader: the partitions with a record to send, and the time of `send`."""
        self._outstanding: set[TopicPartition] = set()
        self._behind: dict[TopicPartition, float] = {}
        """Partitions that get a record as soon as the previous one is acknowledged."""
        self._doubtful: dict[TopicPartition, float] = {}
        """Partitions whose leader must be looked up; their records wait here."""
        self.acknowledged: dict[TopicPartition, tuple[float, float]] = {}
        """Times of `send` and of the acknowledgement, for the last acknowledged record of a partition."""
        self._records = build_batch([Record(None, b"x" * 100, int(time.time() * 1000))])
        self._news = asyncio.Condition()
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._addresses: dict[int, Address] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._leaders)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SteadyProducer]:
        await self._look_up()
        tasks = [asyncio.create_task(self._pace()), asyncio.create_task(self._look_up_doubtful())]
        try:
            yield self
        finally:
            tasks += self._senders.values()
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended

    async def send(self, partitions: Iterable[TopicPartition], *, behind: bool = False) -> None:
        """Send a record to each partition. A partition that still waits for an acknowledgement gets no record, or with
        `behind` one after the acknowledgement."""
        now = time.time()
        for name in partitions:
            if name not in self._outstanding:
                self._outstanding.add(name)
                self._waiting.setdefault(self._leaders[name], {})[name] = now
            elif behind:
                self._behind[name] = now
        async with self._news:
            self._news.notify_all()

    async def wait_acknowledged(self, since: float, timeout: float) -> dict[TopicPartition, float]:
        """For each partition, the first acknowledgement of a record that was sent after `since`."""
        first: dict[TopicPartition, float] = {}

        def complete() -> bool:
            for name, (given, acknowledged) in self.acknowledged.items():
                if given >= since:
                    first.setdefault(name, acknowledged)
            return len(first) == len(self._leaders)

        async with asyncio.timeout(timeout), self._news:
            await self._news.wait_for(complete)
        return first

    async def _pace(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(PACE_S / TURNS)
            await self.send(self.partitions[turn::TURNS])
            turn = (turn + 1) % TURNS

    # --- one task per broker ---

    async def _serve(self, broker: int) -> None:
        connection = BrokerConnection(AsyncioNetwork(), *self._addresses[broker], CLIENT_ID, SystemClock())
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda: self._waiting.get(broker))
                batch = self._waiting.pop(broker)
                try:
                    errors = await self._request(connection, sorted(batch))
                except OSError:
                    connection.abort()
                    errors = dict.fromkeys(batch, -1)
                now = time.time()
                for name, given in batch.items():
                    if errors.get(name) == ErrorCode.NONE:
                        self.acknowledged[name] = (given, now)
                        self._outstanding.discard(name)
                    else:
                        self._doubtful[name] = given
                    if name in self._behind and name not in self._outstanding:
                        self._outstanding.add(name)
                        self._waiting.setdefault(broker, {})[name] = self._behind.pop(name)
                async with self._news:
                    self._news.notify_all()
        finally:
            connection.abort()

    async def _request(
        self, connection: BrokerConnection, names: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if not connection.is_connected:
            await connection.connect(1.0)
        body = produce.encode_request(
            PRODUCE_VERSION, acks=-1, timeout_ms=REQUEST_TIMEOUT_MS, entries=[(name, self._records) for name in names]
        )
        answer = await connection.request(ApiKey.PRODUCE, PRODUCE_VERSION, body)
        decoded = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, answer)
        return {
            TopicPartition(topic.name, entry.index): entry.error_code
            for topic in decoded.responses
            for entry in topic.partition_responses
        }

    # --- metadata ---

    async def _look_up_doubtful(self) -> None:
        while True:
            async with self._news:
                await self._news.wait_for(lambda: self._doubtful)
            await asyncio.sleep(RETRY_BACKOFF_S)
            await self._look_up()
            again, self._doubtful = self._doubtful, {}
            for name, given in again.items():
                self._waiting.setdefault(self._leaders[name], {})[name] = given
            async with self._news:
                self._news.notify_all()

    async def _look_up(self) -> None:
        """Ask the first broker that answers. One that does not answer is tried last from now on."""
        for address in list(self._bootstrap):
            connection = BrokerConnection(AsyncioNetwork(), *address, CLIENT_ID, SystemClock())
            try:
                await connection.connect(1.0)
                cls = request_class(ApiKey.METADATA)
                request = cls(
                    topics=[cls.MetadataRequestTopic(name=name) for name in self._topics],
                    allow_auto_topic_creation=False,
                )
                body = encode_request(request, METADATA_VERSION)
                answer = await connection.request(ApiKey.METADATA, METADATA_VERSION, [body], timeout=5.0)
                self._take(decode_response(ApiKey.METADATA, METADATA_VERSION, answer))
                return
            except OSError:
                self._bootstrap.remove(address)
                self._bootstrap.append(address)
            finally:
                with suppress(OSError):
                    await connection.close()

    def _take(self, metadata: object) -> None:
        for broker in metadata.brokers:  # type: ignore[attr-defined]
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for topic in metadata.topics:  # type: ignore[attr-defined]
            for entry in topic.partitions:
                name = TopicPartition(topic.name, entry.partition_index)
                if entry.leader_id >= 0 or name not in self._leaders:
                    self._leaders[name] = entry.leader_id
        for broker_id in self._addresses:
            if broker_id not in self._senders:
                self._senders[broker_id] = asyncio.create_task(self._serve(broker_id), name=f"bench-{broker_id}")
