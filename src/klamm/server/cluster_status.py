"""What `klamm up` shows about its cluster, collected from the brokers, their metrics and their event files.

A broker that does not answer is shown as such; nothing here raises for it.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from klamm.model.wording import count
from klamm.server.broker_process import KlammBroker
from klamm.server.local_cluster import LocalCluster
from klamm.telemetry.event_files import EventTail, in_words
from klamm.telemetry.state_changes import EVENTS_FILE

CHANGES_SHOWN: Final = 5
SCRAPE_TIMEOUT: Final = 2.0
BYTES_IN: Final = "kafka_server_brokertopicmetrics_bytesin_total"
MESSAGES_IN: Final = "kafka_server_brokertopicmetrics_messagesin_total"


class BrokerStatus(NamedTuple):
    id: int
    address: str
    state: str
    is_controller: bool
    leaders: int
    replicas: int
    lagging: int
    """Replicas on this broker that are not in sync."""


@dataclass(frozen=True)
class ClusterStatus:
    brokers: list[BrokerStatus] = field(default_factory=list)
    controller: str = ""
    topics: int = 0
    partitions: int = 0
    offline: int = 0
    under_replicated: int = 0
    records_per_second: float = 0.0
    bytes_per_second: float = 0.0
    changes: list[str] = field(default_factory=list)

    @property
    def health(self) -> str:
        """One sentence."""
        down = [broker.id for broker in self.brokers if broker.state != "up"]
        if self.offline:
            return f"{count(self.offline, 'partition')} without a leader"
        if down:
            return f"{count(len(down), 'broker')} down: {', '.join(map(str, down))}"
        if self.under_replicated:
            return f"{count(self.under_replicated, 'partition')} under-replicated"
        return "healthy"


class StatusReader:
    """Remembers what it needs for rates and for the news since the last look."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._events = {
            broker.id: EventTail(broker.data_directory / EVENTS_FILE) for broker in cluster.brokers.values()
        }
        self._changes: deque[str] = deque(maxlen=CHANGES_SHOWN)
        self._term = ""
        self._totals: dict[int, tuple[float, float]] = {}
        self._looked_at = time.monotonic()

    async def look(self) -> ClusterStatus:
        metadata = await self._metadata()
        records, size = await self._rates()
        self._read_events()
        status = summary(metadata, self._cluster.brokers.values())
        return replace(
            status,
            controller=status.controller and status.controller + self._term,
            records_per_second=records,
            bytes_per_second=size,
            changes=list(self._changes),
        )

    async def _metadata(self) -> Any | None:
        for broker in self._cluster.brokers.values():
            if broker.alive and (found := await self._cluster.metadata(broker.id)) is not None:
                return found
        return None

    async def _rates(self) -> tuple[float, float]:
        """Records and bytes per second since the last look. A broker that restarted counts from zero."""
        now = time.monotonic()
        seconds, self._looked_at = max(now - self._looked_at, 0.001), now
        brokers = [broker for broker in self._cluster.brokers.values() if broker.alive]
        answers = await asyncio.gather(*(asyncio.to_thread(_scrape, broker.metrics_url) for broker in brokers))
        grown = [0.0, 0.0]
        for broker, totals in zip(brokers, answers, strict=True):
            if totals is None:
                continue
            before = self._totals.get(broker.id, totals)
            for number in range(2):
                grown[number] += max(totals[number] - before[number], 0.0)
            self._totals[broker.id] = totals
        return grown[0] / seconds, grown[1] / seconds

    def _read_events(self) -> None:
        news = [event for tail in self._events.values() for event in tail.news()]
        for event in sorted(news, key=lambda event: int(event["time_ms"])):
            if event.get("event") == "controller-elected":
                self._term = f", epoch {event['controller_epoch']}, since {clock(event['time_ms'])}: {event['cause']}"
            if words := in_words(event):
                self._changes.append(f"{clock(event['time_ms'])}  {words}")


def clock(time_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ms / 1000))


def summary(metadata: Any | None, brokers: Iterable[KlammBroker]) -> ClusterStatus:
    """What a Metadata answer tells; None if no broker answers."""
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    lagging: Counter[int] = Counter()
    partitions = [] if metadata is None else [p for topic in metadata.topics for p in topic.partitions]
    for partition in partitions:
        leaders[partition.leader_id] += 1
        replicas.update(partition.replica_nodes)
        lagging.update(set(partition.replica_nodes) - set(partition.isr_nodes))
    controller = -1 if metadata is None else int(metadata.controller_id)
    return ClusterStatus(
        brokers=[_broker(broker, controller, leaders, replicas, lagging) for broker in brokers],
        controller=f"broker {controller}" if controller >= 0 else "",
        topics=0 if metadata is None else len(metadata.topics),
        partitions=len(partitions),
        offline=sum(partition.leader_id < 0 for partition in partitions),
        under_replicated=sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions),
    )


def _broker(
    broker: KlammBroker, controller: int, leaders: Counter[int], replicas: Counter[int], lagging: Counter[int]
) -> BrokerStatus:
    state = "up" if broker.is_ready else "starting" if broker.alive else "down"
    counts = (leaders[broker.id], replicas[broker.id], lagging[broker.id])
    return BrokerStatus(broker.id, broker.address, state, broker.id == controller, *counts)


def _scrape(url: str) -> tuple[float, float] | None:
    """Records and bytes that the broker has received; None if it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=SCRAPE_TIMEOUT) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    totals = dict.fromkeys((MESSAGES_IN, BYTES_IN), 0.0)
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name in totals:
            totals[name] = float(value)
    return totals[MESSAGES_IN], totals[BYTES_IN]
