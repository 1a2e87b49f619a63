"""What this broker believes about the cluster. UpdateMetadata fills it; clients and the broker's own decisions read it.

The last writer wins: the controller epoch was checked before, and leader epochs are not compared. Partitions are kept
per topic, and an update replaces a topic as a whole: an update costs only its topics, and a reader that holds a topic
keeps an unchanged value. An update completes the waiting CreateTopics and DeleteTopics that it satisfies in the same
step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

from klamm.model.brokers import Broker, Endpoint
from klamm.model.control import MetadataUpdate, PartitionMetadata
from klamm.model.ids import LEADER_DURING_DELETE, BrokerId, TopicPartition
from klamm.model.requests import ClientConnection

TOPICS_PER_SLICE: Final = 50
"""Applied between two turns of the event loop; with 1,000 topics of 100 partitions a slice takes less than 10 ms."""


TopicMetadata = Mapping[int, PartitionMetadata]


class MetadataCache:
    def __init__(self) -> None:
        self._topics: dict[str, TopicMetadata] = {}
        self._waiting: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self.brokers: Mapping[BrokerId, Broker] = {}
        """Brokers that are live or shutting down, by id, in order of ids."""
        self._encoded: dict[tuple[int, str], dict[str, bytes]] = {}
        self.controller_id: BrokerId | None = None
        self.is_informed = False
        """At least one UpdateMetadata has arrived. Before that the cache is empty, but the cluster may have topics."""

    # --- lookup ---

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        topic = self._topics.get(partition.topic)
        return None if topic is None else topic.get(partition.partition)

    def __contains__(self, partition: TopicPartition) -> bool:
        return self.partition(partition) is not None

    def is_alive(self, broker: BrokerId) -> bool:
        return broker in self.brokers

    def endpoint(self, broker: BrokerId, listener: str) -> Endpoint | None:
        known = self.brokers.get(broker)
        return None if known is None else known.endpoint(listener)

    def endpoints(self, listener: str) -> Iterator[tuple[Broker, Endpoint]]:
        """The brokers that have this listener, with their address on it."""
        for broker in self.brokers.values():
            endpoint = broker.endpoint(listener)
            if endpoint is not None:
                yield broker, endpoint

    def has_leaders(self, topic: str, partitions: Iterable[int]) -> bool:
        """Each of these partitions has a live leader, so the topic is usable."""
        known = self._topics.get(topic, {})
        return all(p in known and known[p].leader in self.brokers for p in partitions)

    def encoded(self, version: int, listener: str) -> dict[str, bytes]:
        """Topics as a Metadata answer of this version has them on this listener, as far as anyone has asked. An update
        removes what it changes, so the bytes may be used as long as no await comes between."""
        return self._encoded.setdefault((version, listener), {})

    # --- updates ---

    async def update(self, update: MetadataUpdate) -> list[TopicPartition]:
        """Apply one UpdateMetadata and return the partitions that are gone. The caller serializes the calls."""
        topics, controller_id = update.topics, update.sender.controller_id
        brokers = {broker.id: broker for broker in sorted(update.brokers, key=attrgetter("id"))}
        if brokers != self.brokers:
            self.brokers = brokers
            self._encoded.clear()
        self.controller_id = controller_id if controller_id >= 0 else None
        gone: list[TopicPartition] = []
        for start in range(0, len(topics), TOPICS_PER_SLICE):
            for name, partitions in topics[start : start + TOPICS_PER_SLICE]:
                gone += self._update_topic(name, partitions)
            if start + TOPICS_PER_SLICE < len(topics):
                await asyncio.sleep(0)
        self.is_informed = True
        self._complete_waiting()
        return gone

    def _update_topic(self, name: str, partitions: Sequence[tuple[int, PartitionMetadata]]) -> list[TopicPartition]:
        updated = dict(self._topics.get(name, {}))
        for encoded in self._encoded.values():
            encoded.pop(name, None)
        gone = []
        for partition, metadata in partitions:
            if metadata.leader == LEADER_DURING_DELETE:
                if updated.pop(partition, None) is not None:
                    gone.append(TopicPartition(name, partition))
            else:
                updated[partition] = metadata
        if updated:
            self._topics[name] = updated
        else:
            self._topics.pop(name, None)
        return gone

    # --- waiting ---

    async def wait_until(
        self, condition: Callable[[], bool], timeout: float, client: ClientConnection | None = None
    ) -> bool:
        """True once the cache satisfies `condition`, False after `timeout` seconds or when the client disconnects."""
        if condition():
            return True
        if timeout <= 0:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[done] = condition
        forget_client = client.when_gone(lambda: _give_up(done)) if client is not None else None
        try:
            async with asyncio.timeout(timeout):
                return await done
        except TimeoutError:
            return False
        finally:
            del self._waiting[done]
            if forget_client is not None:
                forget_client()

    def _complete_waiting(self) -> None:
        for done, condition in list(self._waiting.items()):
            if not done.done() and condition():
                done.set_result(True)


def _give_up(done: asyncio.Future[bool]) -> None:
    if not done.done():
        done.set_result(False)
