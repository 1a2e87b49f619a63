"""Administration: topics, partitions, configurations, elections, reassignments, log directories.

A call raises KafkaError or ClientError if it failed as a whole. What concerns one topic, partition or group of several
is returned for each: None, or a KafkaError with the broker's code and words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.client.cluster import BrokerAddress, ClusterClient
from klamm.model.config_levels import ConfigEntry, Source, Synonym
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.by_topic import by_topic
from klamm.wire.errors import error_of
from klamm.wire.messages import request_class

DELETE_TOPICS_NEWEST: Final = 5
"""Later versions name topics by id too."""
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
LOG_DIRS_NEWEST: Final = 4
"""Newer than what klamm's brokers serve: it tells how much space is left."""
TOPICS_AT_ONCE: Final = 1_000
"""Topics in one DescribeConfigs."""
SET, DELETE, APPEND, SUBTRACT = range(4)
Outcome = KafkaError | None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """Numbers of partitions and replicas, or the brokers of each partition."""

    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


class Admin:
    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    # --- the cluster and its topics

    async def brokers(self) -> dict[int, BrokerAddress]:
        """All live brokers. Afterwards the client's `controller_id` and `cluster_id` are fresh too."""
        await self._metadata([])
        return dict(self._cluster.brokers)

    async def topic_names(self) -> list[str]:
        return sorted(topic.name for topic in (await self._metadata(None)).topics)

    async def describe_topics(self, names: Collection[str] | None = None) -> list[Any]:
        """The entries of Metadata; an unknown topic has its error code there."""
        return list((await self._metadata(names)).topics)

    async def _metadata(self, names: Collection[str] | None) -> Any:
        async def attempt() -> Any:
            answer = await self._cluster.metadata(names)
            if not answer.brokers:  # a broker answers before the controller has told it of the cluster
                raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker that answers knows no brokers yet")
            return answer

        return await self._cluster.repeating("Metadata", attempt)

    async def create_topics(self, topics: Mapping[str, NewTopic], *, validate_only: bool = False) -> dict[str, Outcome]:
        cls = request_class(ApiKey.CREATE_TOPICS)
        wanted = [
            cls.CreatableTopic(
                name=name,
                num_partitions=-1 if topic.assignments else topic.partitions,
                replication_factor=-1 if topic.assignments else topic.replication_factor,
                assignments=[
                    cls.CreatableTopic.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                    for index, brokers in topic.assignments.items()
                ],
                configs=[cls.CreatableTopic.CreatableTopicConfig(name=k, value=v) for k, v in topic.configs.items()],
            )
            for name, topic in topics.items()
        ]
        request = cls(topics=wanted, timeout_ms=self._wait_ms(), validate_only=validate_only)
        answer = await self._cluster.ask_controller(ApiKey.CREATE_TOPICS, request)
        return {entry.name: outcome(entry) for entry in answer.topics}

    async def create_partitions(self, totals: Mapping[str, int]) -> dict[str, Outcome]:
        """Grow topics to these numbers of partitions."""
        cls = request_class(ApiKey.CREATE_PARTITIONS)
        wanted = [cls.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in totals.items()]
        answer = await self._cluster.ask_controller(
            ApiKey.CREATE_PARTITIONS, cls(topics=wanted, timeout_ms=self._wait_ms())
        )
        return {entry.name: outcome(entry) for entry in answer.results}

    async def delete_topics(self, names: Sequence[str]) -> dict[str, Outcome]:
        request = request_class(ApiKey.DELETE_TOPICS)(topic_names=list(names), timeout_ms=self._wait_ms())
        answer = await self._cluster.ask_controller(ApiKey.DELETE_TOPICS, request, DELETE_TOPICS_NEWEST)
        return {entry.name: outcome(entry) for entry in answer.responses}

    # --- configurations

    async def describe_configs(self, kind: int, name: str, keys: Sequence[str] | None = None) -> dict[str, str | None]:
        """Effective values of a topic, a broker or its loggers. A broker answers for itself."""
        return {key: entry.value for key, entry in (await self.config_entries(kind, name, keys)).items()}

    async def config_entries(self, kind: int, name: str, keys: Sequence[str] | None = None) -> dict[str, ConfigEntry]:
        """With their sources. The name "" with BROKER means the settings for all brokers."""
        cls = request_class(ApiKey.DESCRIBE_CONFIGS)
        resource = cls.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        request = cls(resources=[resource], include_synonyms=True)
        answer = await self._ask_for(kind, name, ApiKey.DESCRIBE_CONFIGS, request)
        (result,) = answer.results
        check(result)
        return {entry.name: _config_entry(entry) for entry in result.configs}

    async def setting_of_topics(self, names: Iterable[str], key: str) -> dict[str, str | None]:
        """One setting of many topics, asked of any broker. Topics that are gone meanwhile are left out."""
        cls = request_class(ApiKey.DESCRIBE_CONFIGS)
        resources = [
            cls.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[key])
            for name in names
        ]
        found: dict[str, str | None] = {}
        for at in range(0, len(resources), TOPICS_AT_ONCE):
            request = cls(resources=resources[at : at + TOPICS_AT_ONCE])
            answer = await self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, request)
            found |= {result.resource_name: entry.value for result in answer.results for entry in result.configs}
        return found

    async def alter_configs(self, kind: int, name: str, changes: Mapping[str, tuple[int, str | None]]) -> None:
        """Each key with an operation (SET, DELETE, APPEND or SUBTRACT) and a value; other keys stay as they are."""
        cls = request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        entry = cls.AlterConfigsResource.AlterableConfig
        configs = [entry(name=key, config_operation=how, value=value) for key, (how, value) in changes.items()]
        resource = cls.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        answer = await self._ask_for(kind, name, ApiKey.INCREMENTAL_ALTER_CONFIGS, cls(resources=[resource]))
        (result,) = answer.responses
        check(result)

    async def _ask_for(self, kind: int, name: str, key: ApiKey, request: Any) -> Any:
        if kind in (BROKER, BROKER_LOGGER) and name:
            return await self._cluster.ask_broker(int(name), key, request)
        return await self._cluster.ask_any(key, request)

    # --- leaders and replicas

    async def elect_leaders(
        self, election: int, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Outcome]:
        """Preferred (0) or unclean (1); None means all partitions that need one."""
        cls = request_class(ApiKey.ELECT_LEADERS)
        wanted = None
        if partitions is not None:
            wanted = [cls.TopicPartitions(topic=t, partitions=p) for t, p in numbers_by_topic(partitions).items()]
        request = cls(election_type=election, topic_partitions=wanted, timeout_ms=self._wait_ms())
        answer = await self._cluster.ask_controller(ApiKey.ELECT_LEADERS, request)
        check(answer)
        return {
            TopicPartition(entry.topic, result.partition_id): outcome(result)
            for entry in answer.replica_election_results
            for result in entry.partition_result
        }

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, Outcome]:
        """Move each partition to these brokers; None cancels its move."""
        cls = request_class(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        topic = cls.ReassignableTopic

        def wanted(name: TopicPartition) -> Any:
            replicas = targets[name]
            return topic.ReassignablePartition(
                partition_index=name.partition, replicas=None if replicas is None else list(replicas)
            )

        topics = [
            topic(name=name, partitions=[wanted(TopicPartition(name, index)) for index in indexes])
            for name, indexes in numbers_by_topic(targets).items()
        ]
        answer = await self._cluster.ask_controller(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, cls(topics=topics, timeout_ms=self._wait_ms())
        )
        check(answer)
        return {
            TopicPartition(entry.name, result.partition_index): outcome(result)
            for entry in answer.responses
            for result in entry.partitions
        }

    async def reassignments(self) -> dict[TopicPartition, Any]:
        """The partitions on the move, with `replicas`, `adding_replicas` and `removing_replicas`."""
        request = request_class(ApiKey.LIST_PARTITION_REASSIGNMENTS)(topics=None, timeout_ms=self._wait_ms())
        answer = await self._cluster.ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
        check(answer)
        return {
            TopicPartition(entry.name, moving.partition_index): moving
            for entry in answer.topics
            for moving in entry.partitions
        }

    async def log_dirs(self, broker: int, partitions: Iterable[TopicPartition] | None = None) -> list[Any]:
        """The entries of DescribeLogDirs: `log_dir`, `error_code`, and `topics` with their partitions and sizes.

        `total_bytes` and `usable_bytes` are -1 if the broker does not tell them (klamm does, Kafka since 3.3).
        """
        cls = request_class(ApiKey.DESCRIBE_LOG_DIRS)
        topics = None
        if partitions is not None:
            topics = [
                cls.DescribableLogDirTopic(topic=topic, partitions=numbers)
                for topic, numbers in numbers_by_topic(partitions).items()
            ]
        answer = await self._cluster.ask_broker(broker, ApiKey.DESCRIBE_LOG_DIRS, cls(topics=topics), LOG_DIRS_NEWEST)
        check(answer)
        return list(answer.results)

    async def alter_log_dirs(self, broker: int, paths: Mapping[TopicPartition, str]) -> dict[TopicPartition, Outcome]:
        """Move a broker's replicas to these directories."""
        cls = request_class(ApiKey.ALTER_REPLICA_LOG_DIRS)
        by_path: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for name, path in paths.items():
            by_path[path].append(name)
        entry = cls.AlterReplicaLogDir
        dirs = [
            entry(
                path=path,
                topics=[
                    entry.AlterReplicaLogDirTopic(name=t, partitions=p) for t, p in numbers_by_topic(names).items()
                ],
            )
            for path, names in by_path.items()
        ]
        answer = await self._cluster.ask_broker(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, cls(dirs=dirs))
        return {
            TopicPartition(topic.topic_name, result.partition_index): outcome(result)
            for topic in answer.results
            for result in topic.partitions
        }

    def _wait_ms(self) -> int:
        """How long a broker may wait for the effect of a change before it answers."""
        return int(self._cluster.timeout * 1000 * 2 / 3)


def names_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    return by_topic(partitions, lambda name: name)


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    return {topic: [name.partition for name in names] for topic, names in names_by_topic(partitions).items()}


def _config_entry(entry: Any) -> ConfigEntry:
    synonyms = tuple(Synonym(each.name, each.value, _source(each.source)) for each in entry.synonyms)
    return ConfigEntry(
        entry.name, entry.value, _source(entry.config_source), entry.read_only, entry.is_sensitive, synonyms
    )


def _source(number: int) -> Source:
    """A source of a later Kafka counts as built in."""
    return Source(number) if number in set(Source) else Source.BUILT_IN


def outcome(entry: Any) -> Outcome:
    """The error of an entry in an answer."""
    if entry.error_code == ErrorCode.NONE:
        return None
    return KafkaError(error_of(entry.error_code), getattr(entry, "error_message", None) or None)


def check(entry: Any) -> None:
    error = outcome(entry)
    if error is not None:
        raise error
