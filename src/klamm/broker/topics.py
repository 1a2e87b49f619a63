"""Topic administration: what makes a topic valid, and the two znodes that make it exist.

Creation is not a controller event. The broker that handles it (the controller for CreateTopics, any broker for
auto-creation) validates, writes /config/topics/<t>, then creates /brokers/topics/<t>, and the controller reacts to its
watch. A topic that is marked for deletion cannot be created again before it is gone: the new topic would inherit the
deletion, or the old records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from klamm.admin.placement import Placement, PlacementBroker, RackMode, growth_start, place
from klamm.broker.topic_configs import TopicConfigs
from klamm.model.brokers import Broker
from klamm.model.config import topic_config
from klamm.model.errors import BadVersion, ErrorCode, KafkaError, NodeExists, NoNode, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.model.ports import ZooKeeper
from klamm.model.settings import INT_MAX
from klamm.zookeeper.znodes import broker_id, config, delete_topics, topic

NAME_CHARACTERS_MAX: Final = 249
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
DEFAULT: Final = -1
"""Take the broker's default number of partitions or replication factor."""


class NewTopic(NamedTuple):
    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: Mapping[int, Sequence[BrokerId]] | None = None
    configs: Mapping[str, str | None] = {}


class PlannedTopic(NamedTuple):
    """A topic that is valid and placed, but not written yet."""

    name: str
    replicas: Placement
    configs: dict[str, str]

    @property
    def replication_factor(self) -> int:
        return len(self.replicas[0])


class Growth(NamedTuple):
    name: str
    partitions: int
    """The total after the growth."""
    assignment: Sequence[Sequence[BrokerId]] | None = None
    """Replicas of the new partitions, in order."""


def validate_name(name: str) -> None:
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = 'it cannot be "." or ".."'
    elif len(name) > NAME_CHARACTERS_MAX:
        reason = f"it is longer than {NAME_CHARACTERS_MAX} characters"
    elif not _NAME.fullmatch(name):
        reason = "it contains a character other than ASCII letters and digits, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name!r} is illegal: {reason}")


def colliding(name: str, topics: Sequence[str]) -> list[str]:
    """Metric names turn '.' into '_', so `a.b` and `a_b` cannot both exist."""
    flat = name.replace(".", "_")
    return [other for other in topics if other != name and other.replace(".", "_") == flat]


def validate_assignment(assignment: Mapping[int, Sequence[BrokerId]]) -> Placement:
    """Accepts unknown brokers: the partition waits for them."""
    lists = [tuple(assignment[partition]) for partition in sorted(assignment)]
    if sorted(assignment) != list(range(len(assignment))):
        reason = "partitions must be numbered from 0 without gaps"
    elif any(len(set(replicas)) < len(replicas) for replicas in lists):
        reason = "a broker appears twice in one replica list"
    elif any(not replicas or len(replicas) != len(lists[0]) for replicas in lists):
        reason = "all partitions must have the same number of replicas, at least one"
    else:
        return dict(enumerate(lists))
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Invalid replica assignment: {reason}")


def plan_growth(
    growth: Growth, existing: Mapping[int, Assignment], brokers: Sequence[PlacementBroker]
) -> dict[int, Assignment]:
    """The new partitions of a topic. Placement continues from the first replica of partition 0."""
    if any(assignment.is_being_reassigned for assignment in existing.values()):
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"A partition of '{growth.name}' is being reassigned.")
    count = len(existing)
    if growth.partitions <= count:
        reason = f"Topic '{growth.name}' has {count} partitions; {growth.partitions} would not be an increase."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, reason)
    if 0 not in existing:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Topic '{growth.name}' lacks partition 0.")
    first = existing[0].replicas
    added = range(count, growth.partitions)
    if growth.assignment is None:
        start = growth_start(brokers, first[0])
        placed = place(brokers, added, len(first), start=start, shift=start)
        return {partition: Assignment(placed[partition]) for partition in added}
    known = {broker.id for broker in brokers}
    lists = [tuple(replicas) for replicas in growth.assignment]
    if len(lists) != len(added):
        reason = f"{len(lists)} replica lists were given for {len(added)} new partitions"
    elif any(len(replicas) != len(first) for replicas in lists):
        reason = f"every list must have {len(first)} replicas, as partition 0 has"
    elif any(len(set(replicas)) < len(replicas) for replicas in lists):
        reason = "a broker appears twice in one replica list"
    elif not known.issuperset(broker for replicas in lists for broker in replicas):
        reason = "a broker is unknown"
    else:
        return {partition: Assignment(replicas) for partition, replicas in zip(added, lists, strict=True)}
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Invalid replica assignment: {reason}")


class TopicAdmin:
    def __init__(
        self,
        zk: ZooKeeper,
        random: Random,
        configs: TopicConfigs,
        *,
        partitions_default: int,
        replication_factor_default: int,
        partitions_max: int = INT_MAX,
    ) -> None:
        self._partitions_max = partitions_max
        self._zk = zk
        self._random = random
        self._configs = configs
        self._partitions_default = partitions_default
        self._replication_factor_default = replication_factor_default

    async def dedicated_controllers(self, brokers: Sequence[BrokerId]) -> frozenset[BrokerId]:
        """The brokers that take no replicas. Only their registrations say so: UpdateMetadata has no such field."""
        paths = [broker_id.path(broker) for broker in brokers]
        dedicated = set()
        for broker, path, node in zip(brokers, paths, await self._zk.get_many(paths), strict=True):
            try:
                if node is not None and broker_id.decode(path, node.data).controller_only:
                    dedicated.add(broker)
            except ZNodeError:
                continue  # the controller reports the broken znode
        return frozenset(dedicated)

    async def placement_brokers(self, live: Iterable[Broker]) -> list[PlacementBroker]:
        """Live brokers that may get replicas: all but dedicated controllers."""
        brokers = sorted(live)
        dedicated = await self.dedicated_controllers([broker.id for broker in brokers])
        return [PlacementBroker(broker.id, broker.rack) for broker in brokers if broker.id not in dedicated]

    async def partition_count(self, name: str) -> int | None:
        """What ZooKeeper says, which is never a part of the topic; None if it does not exist."""
        path = topic.path(name)
        try:
            node = await self._zk.get(path)
        except NoNode:
            return None
        return len(topic.decode(path, node.data).partitions)

    async def partitions_left(self, name: str) -> int:
        """How many partitions ZooKeeper knows by now; 0 if the topic does not exist or is being deleted."""
        await self._zk.sync(topic.path(name))
        if await self._zk.exists(delete_topics.path(name)) is not None:
            return 0
        return await self.partition_count(name) or 0

    def plan(
        self, new: NewTopic, brokers: Sequence[PlacementBroker], mode: RackMode = RackMode.ENFORCED
    ) -> PlannedTopic:
        """Validate and place a topic, as far as possible without ZooKeeper."""
        validate_name(new.name)
        topic_config(self._configs.defaults, new.configs)
        configs = {key: value for key, value in new.configs.items() if value is not None}
        return PlannedTopic(new.name, self._place(new, brokers, mode), configs)

    def _place(self, new: NewTopic, brokers: Sequence[PlacementBroker], mode: RackMode) -> Placement:
        if new.assignment:
            if new.partitions != DEFAULT or new.replication_factor != DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Both numPartitions or replicationFactor and replicasAssignments were set. "
                    "Both cannot be used at the same time.",
                )
            return validate_assignment(new.assignment)
        partitions = self._partitions_default if new.partitions == DEFAULT else new.partitions
        if partitions <= 0:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
        self._check_count(partitions)
        factor = self._replication_factor_default if new.replication_factor == DEFAULT else new.replication_factor
        count = max(1, len(brokers))
        start, shift = self._random.randrange(count), self._random.randrange(count)
        return place(brokers, range(partitions), factor, start=start, shift=shift, mode=mode)

    def _check_count(self, partitions: int) -> None:
        """Comes before any allocation of that size: a request of a few bytes can ask for two billion partitions."""
        if partitions > self._partitions_max:
            reason = f"{partitions} partitions exceed klamm.max.partitions.per.topic={self._partitions_max}."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, reason)

    async def check(self, planned: PlannedTopic) -> None:
        """Check in ZooKeeper that the name is free, does not collide, and is not being deleted."""
        existing = await self._zk.children(topic.PARENT)
        if planned.name in existing:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{planned.name}' already exists.")
        others = colliding(planned.name, sorted(existing))
        if others:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{planned.name}' collides with existing topic {others[0]}."
            )
        if await self._zk.exists(delete_topics.path(planned.name)) is not None:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"Topic '{planned.name}' is marked for deletion and still exists.",
            )

    async def create(self, planned: PlannedTopic) -> None:
        await self.check(planned)
        await self._write_config(planned)
        assignments = {partition: Assignment(replicas) for partition, replicas in planned.replicas.items()}
        try:
            await self._zk.create(topic.path(planned.name), topic.encode(assignments))
        except NodeExists:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{planned.name}' already exists.") from None

    async def _write_config(self, planned: PlannedTopic) -> None:
        """Write it even without overrides, and over what an earlier topic of the same name left behind."""
        path, data = config.topic_path(planned.name), config.encode(planned.configs)
        try:
            await self._zk.create(path, data)
        except NodeExists:
            await self._zk.set(path, data)

    async def grow(self, growth: Growth, brokers: Sequence[PlacementBroker], *, validate_only: bool = False) -> range:
        """Returns the numbers of the new partitions. The write is conditional on the version that was read, because a
        reassignment writes the same znode."""
        self._check_count(growth.partitions)
        if await self._zk.exists(delete_topics.path(growth.name)) is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{growth.name}' is being deleted.")
        path = topic.path(growth.name)
        while True:
            try:
                node = await self._zk.get(path)
            except NoNode:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from None
            found = topic.decode(path, node.data)
            added = plan_growth(growth, found.partitions, brokers)
            if not validate_only:
                try:
                    await self._zk.set(
                        path, topic.encode({**found.partitions, **added}, found.topic_id), node.stat.version
                    )
                except BadVersion:
                    continue
            return range(min(added), max(added) + 1)

    async def mark_for_deletion(self, name: str) -> None:
        try:
            await self._zk.create(delete_topics.path(name))
        except NodeExists:
            pass  # already marked
