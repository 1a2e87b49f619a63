"""Looks at a cluster again and again: one bulk read of ZooKeeper when something changed, a sample of the brokers, and
the news of event files.

Each look starts with one small read. Every answer of ZooKeeper carries the zxid of its last change: if it is still the
one of the last bulk read, nothing has changed, and the snapshot is confirmed at no cost. Otherwise the tree is read
again, but not more than a fifth of the time, so that a large cluster that changes all the time is not read all the
time.

The first page needs only one answer of a broker (`preview`), the others the tree. Everything slower comes after it:
the doctor's findings, and the brokers' sizes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from klamm.admin.doctor.doctor import examine
from klamm.admin.reassignment_progress import Move
from klamm.admin.replication_throttles import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from klamm.client.admin import BROKER, Admin
from klamm.client.cluster import ClusterClient
from klamm.client.cluster_load import Sizes
from klamm.client.errors import reason
from klamm.dashboard.history import History
from klamm.dashboard.load import BrokerSample, ClusterLoad, Directory, LoadHistory
from klamm.dashboard.observation import Observation
from klamm.dashboard.preview import preview_of
from klamm.dashboard.snapshot import DEFAULT_MIN_ISR, ClusterSnapshot, snapshot_of
from klamm.model.errors import ErrorCode, KlammError, ZNodeError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.controller_requests import preferred_brokers
from klamm.zookeeper.kafka_tree_reader import read_kafka_tree
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import cluster_id, config, controller

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
LOOK_TIMEOUT: Final = 30.0
PREVIEW_SECONDS: Final = 1.0
REST_FACTOR: Final = 4
"""A bulk read is followed by a rest of this many times its duration."""
SAMPLE_SECONDS: Final = 2.0
SAMPLE_REST_FACTOR: Final = 10
DISCOVER_SECONDS: Final = 5.0
MIN_ISR: Final = "min.insync.replicas"
THROTTLED_REPLICAS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
THROTTLED_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
NO_OVERRIDES_BYTES: Final = len(config.encode({}))
FAILURES: Final = (KlammError, OSError, TimeoutError)

Publish = Callable[[Observation], None]


class Observer:
    def __init__(
        self, zk: ZooKeeperClient, cluster: ClusterClient, history: History, clock: Clock, publish: Publish
    ) -> None:
        self._zk = zk
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._history = history
        self._clock = clock
        self._publish = publish
        self._loads = LoadHistory()
        self._default_min_isr = DEFAULT_MIN_ISR
        self._read_again_at = 0.0
        self._read_zxid: int | None = None
        self._has_read = asyncio.Event()
        self.current = Observation()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._preview_until_read(), name="preview")
            tasks.create_task(self._look_forever(), name="look")
            tasks.create_task(self._sample_forever(), name="sample")
            tasks.create_task(self._read_files_forever(), name="read events")

    # --- ZooKeeper

    async def _look_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_TIMEOUT):
                    await self.look()
            except FAILURES as error:
                trouble = str(error) or type(error).__name__
                if trouble != self.current.trouble:
                    logger.warning("the cluster could not be read: %s", trouble)
                    self._change(trouble=trouble)
            await asyncio.sleep(LOOK_SECONDS)

    async def _preview_until_read(self) -> None:
        """Where this fails, pages wait for ZooKeeper, as they do anyway."""
        while self.current.snapshot is None:
            try:
                await self.preview()
            except FAILURES as error:
                logger.info("the brokers did not describe the cluster: %s", error)
            await asyncio.sleep(PREVIEW_SECONDS)

    async def preview(self) -> None:
        """Raises one of FAILURES."""
        began = self._clock.monotonic()
        metadata = await self._cluster.metadata(None)
        if self.current.snapshot is None and metadata.brokers:
            self._change(preview=preview_of(metadata, self._clock.wall_ms()), checked_at=began)

    async def look(self) -> None:
        """Raises one of FAILURES."""
        began = self._clock.monotonic()
        (identity, _) = await self._zk.get_many([cluster_id.PATH, controller.PATH])
        zxid = self._zk.last_zxid
        if zxid == self._read_zxid:
            self._confirm(began)
            return
        if began < self._read_again_at:
            return  # the age of the snapshot grows, and pages show it
        tree = await read_kafka_tree(self._zk, self._clock.wall_ms(), with_acls=False)
        candidates = await preferred_brokers(self._zk)
        minima, throttled = await self._topic_settings(tree.configured_topics)
        throttles = await self._broker_throttles()
        snapshot = snapshot_of(
            tree,
            zxid=zxid,
            cluster_id=_cluster_id(identity.data if identity is not None else None),
            candidates=candidates,
            min_isr=minima,
            default_min_isr=self._default_min_isr,
            throttled_topics=throttled,
            throttles=throttles,
        )
        self._take(snapshot)
        if self.current.snapshot is None:
            self._change(snapshot=snapshot, preview=None, checked_at=began, trouble="")
            self._has_read.set()
        findings = tuple(examine(tree))
        now = self._clock.monotonic()
        self._read_again_at = now + REST_FACTOR * (now - began)
        self._read_zxid = zxid
        self._change(snapshot=snapshot, findings=findings, checked_at=began, trouble="")

    def _take(self, snapshot: ClusterSnapshot) -> None:
        self._history.read_files()
        self._history.take(snapshot)

    def _confirm(self, at: float) -> None:
        """Nothing has changed: only the age is new, and no page must be made again for it."""
        if self.current.trouble:
            self._change(checked_at=at, trouble="")
        else:
            self.current = replace(self.current, checked_at=at)
            self._publish(self.current)

    async def _topic_settings(self, topics: Sequence[str]) -> tuple[dict[str, int], list[str]]:
        """The topics that have a minimum of their own, and those with throttled replicas."""
        minima: dict[str, int] = {}
        throttled: list[str] = []
        for name, overrides in (await self._overrides(config.TOPICS, topics)).items():
            try:
                minima[name] = int(overrides.get(MIN_ISR, ""))
            except ValueError:
                pass  # not set, or not a number: the broker uses its default too
            if any(overrides.get(key) for key in THROTTLED_REPLICAS):
                throttled.append(name)
        return minima, throttled

    async def _broker_throttles(self) -> dict[int, int]:
        """The lower rate of each broker that has one."""
        names = await children_or_none(self._zk, config.type_path(config.BROKERS)) or []
        rates: dict[int, int] = {}
        for name, overrides in (await self._overrides(config.BROKERS, names)).items():
            found = [int(overrides[key]) for key in THROTTLED_RATES if overrides.get(key, "").isdecimal()]
            if found and name.isdecimal():
                rates[int(name)] = min(found)
        return rates

    async def _overrides(self, kind: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Those that are set and can be read. Most entities of a large cluster have none."""
        paths = [config.path(kind, name) for name in names]
        found: dict[str, dict[str, str]] = {}
        for name, path, node in zip(names, paths, await self._zk.get_many(paths), strict=True):
            if node is None or not node.data or len(node.data) <= NO_OVERRIDES_BYTES:
                continue
            try:
                found[name] = config.decode(path, node.data)
            except ZNodeError:
                continue
        return found

    # --- brokers

    async def _sample_forever(self) -> None:
        """A sample costs the brokers what it costs here, so a long one is followed by a long rest. Waiting for a broker
        that does not answer costs nothing."""
        await self._has_read.wait()
        while True:
            busy = 0.0
            if self.current.snapshot is not None:
                busy = await self.sample(self.current.snapshot.registered)
            await asyncio.sleep(max(SAMPLE_SECONDS, SAMPLE_REST_FACTOR * busy))

    async def sample(self, brokers: list[int]) -> float:
        """The seconds that the slowest broker took that did answer."""
        began = self._clock.monotonic()
        answered = [began]
        sizes: Sizes = {}
        answers = await asyncio.gather(*(self._sample(broker, sizes, answered) for broker in brokers))
        samples = dict(zip(brokers, answers, strict=True))
        load: ClusterLoad = self._loads.add(self._clock.monotonic(), samples, sizes, self._moving())
        await self._learn_min_isr(samples)
        self._change(load=load)
        return max(answered) - began

    def _moving(self) -> list[Move]:
        """A copy is complete when the replica is in sync, whatever its size."""
        snapshot = self.current.snapshot
        rows = [] if snapshot is None else snapshot.moving()
        return [
            Move(
                TopicPartition(row.topic, row.number),
                row.leader,
                [b for b in row.assignment.adding if b not in row.isr],
            )
            for row in rows
        ]

    async def _sample(self, broker: int, sizes: Sizes, answered: list[float]) -> BrokerSample:
        """One broker that does not answer concerns only itself."""
        try:
            entries = await self._admin.log_dirs(broker)
        except FAILURES as error:
            return BrokerSample(problem=reason(error))
        answered.append(self._clock.monotonic())
        directories = []
        for entry in entries:
            total = replicas = 0
            for topic in entry.topics:
                for partition in topic.partitions:
                    total += partition.partition_size
                    replicas += 1
                    if not partition.is_future_key:
                        name = TopicPartition(topic.name, partition.partition_index)
                        sizes.setdefault(name, {})[broker] = partition.partition_size
            problem = "" if entry.error_code == ErrorCode.NONE else ErrorCode(entry.error_code).name
            space = (entry.total_bytes, entry.usable_bytes) if entry.total_bytes >= 0 else (None, None)
            directories.append(Directory(broker, entry.log_dir, total, replicas, problem, *space))
        return BrokerSample(tuple(directories))

    async def _learn_min_isr(self, samples: Mapping[int, BrokerSample]) -> None:
        answering = [broker for broker, sample in samples.items() if not sample.problem]
        if not answering:
            return
        try:
            values = await self._admin.describe_configs(BROKER, str(answering[0]), [MIN_ISR])
            default = int(values.get(MIN_ISR) or DEFAULT_MIN_ISR)
        except (*FAILURES, ValueError):
            return  # the last value stays
        if default != self._default_min_isr:
            self._default_min_isr, self._read_zxid = default, None

    # --- event files

    async def _read_files_forever(self) -> None:
        discover_at = 0.0
        while True:
            if self._clock.monotonic() >= discover_at:
                self._history.discover()
                discover_at = self._clock.monotonic() + DISCOVER_SECONDS
            if self._history.read_files():
                self._change()
            await asyncio.sleep(LOOK_SECONDS)

    def _change(self, **parts: object) -> None:
        self.current = replace(
            self.current,
            version=self.current.version + 1,
            entries=self._history.entries(),
            terms=self._history.terms(),
            notes=self._history.notes(),
            reads_events=self._history.reads_events,
            **parts,  # type: ignore[arg-type]
        )
        self._publish(self.current)


def _cluster_id(data: bytes | None) -> str:
    try:
        return cluster_id.decode(cluster_id.PATH, data)
    except ZNodeError:
        return ""
