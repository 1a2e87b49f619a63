"""Kafka's configuration keys with Kafka's defaults, and klamm's own keys, which begin with `klamm.` (design D8).

Each broker has one frozen value, passed to constructors; there is no global configuration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, Final

from klamm.model.brokers import Endpoint, SecurityProtocol
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.ids import BrokerId
from klamm.model.secured import refuse_security
from klamm.model.setting_texts import reason_not_supported
from klamm.model.settings import (
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    ConfigType,
    Scope,
    boolean,
    choice,
    integer,
    keys_without_effect,
    matching,
    number,
    password,
    read_settings,
    settings_of,
    text,
    without_effect,
    words,
)

CLUSTER: Final = Scope.CLUSTER_WIDE
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000

CODECS: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
GROWING_FILES: Final = "segment files grow as they are written"
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTORS: Final = ("", RACK_AWARE, "org.apache.kafka.common.replica.LeaderSelector")
"""Without a selector every consumer reads from the leader."""
PROTOCOL_VERSIONS: Final = ("2.4", "2.5", "2.6")
"""The supported values of inter.broker.protocol.version. 2.7 and above need AlterPartition and topic ids."""


TYPO_SIMILARITY: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    # Identity and addresses
    broker_id: int = integer("broker.id", -1, least=-1, most=INT_MAX)
    broker_id_generation_enable: bool = boolean("broker.id.generation.enable", True)
    reserved_broker_max_id: int = integer("reserved.broker.max.id", 1000, least=0, most=INT_MAX)
    rack: str | None = text("broker.rack", None)
    zookeeper_connect: str = text("zookeeper.connect", "")
    zookeeper_session_timeout_ms: int = integer("zookeeper.session.timeout.ms", 18_000, least=1, most=INT_MAX)
    zookeeper_connection_timeout_ms: int = integer("zookeeper.connection.timeout.ms", -1, least=-1, most=INT_MAX)
    listeners: tuple[str, ...] = words("listeners", ("PLAINTEXT://:9092",), type=ConfigType.STRING)
    advertised_listeners: tuple[str, ...] = words("advertised.listeners", (), type=ConfigType.STRING)
    listener_security_protocol_map: tuple[str, ...] = words(
        "listener.security.protocol.map", (), type=ConfigType.STRING
    )
    inter_broker_listener_name: str = text("inter.broker.listener.name", "")
    control_plane_listener_name: str = text("control.plane.listener.name", "")
    inter_broker_protocol_version: str = text("inter.broker.protocol.version", "2.6")

    # Network
    socket_request_max_bytes: int = integer("socket.request.max.bytes", 104_857_600, least=1, most=INT_MAX)
    queued_max_request_bytes: int = integer("queued.max.request.bytes", -1, least=-1)
    """Bytes of requests that are read and not answered; above it, clients' sockets are not read. -1 means no limit."""
    connections_max_idle_ms: int = integer("connections.max.idle.ms", 600_000, least=-1)
    """A connection without traffic for this long is closed; -1 means never."""
    max_connections: int = integer("max.connections", INT_MAX, most=INT_MAX, scope=CLUSTER)
    max_connections_per_ip: int = integer("max.connections.per.ip", INT_MAX, most=INT_MAX, scope=CLUSTER)
    max_connections_per_ip_overrides: tuple[str, ...] = words(
        "max.connections.per.ip.overrides", (), scope=CLUSTER, type=ConfigType.STRING
    )
    request_timeout_ms: int = integer("request.timeout.ms", 30_000, least=1, most=INT_MAX)
    controller_socket_timeout_ms: int = integer("controller.socket.timeout.ms", 30_000, least=1, most=INT_MAX)

    # Log
    log_dirs: tuple[str, ...] = words(
        "log.dirs", (str(PurePath(tempfile.gettempdir(), "kafka-logs")),), type=ConfigType.STRING
    )
    num_recovery_threads_per_data_dir: int = integer(
        "num.recovery.threads.per.data.dir", 1, least=1, scope=CLUSTER, most=INT_MAX
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        "log.flush.offset.checkpoint.interval.ms", 60_000, least=1, most=INT_MAX
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000, least=1, most=INT_MAX
    )
    log_retention_check_interval_ms: int = integer("log.retention.check.interval.ms", 5 * MINUTE_MS, least=1)
    log_cleanup_policy: tuple[str, ...] = words(
        "log.cleanup.policy", ("delete",), allowed=("compact", "delete"), scope=CLUSTER
    )
    log_segment_bytes: int = integer("log.segment.bytes", 1 << 30, least=14, most=INT_MAX, scope=CLUSTER)
    log_index_size_max_bytes: int = integer("log.index.size.max.bytes", 10 << 20, least=4, most=INT_MAX, scope=CLUSTER)
    log_index_interval_bytes: int = integer("log.index.interval.bytes", 4096, most=INT_MAX, scope=CLUSTER)
    log_roll_ms: int = integer(
        "log.roll.ms", 168 * HOUR_MS, least=1, aliases=[("log.roll.hours", HOUR_MS)], scope=CLUSTER
    )
    log_roll_jitter_ms: int = integer(
        "log.roll.jitter.ms", 0, aliases=[("log.roll.jitter.hours", HOUR_MS)], scope=CLUSTER
    )
    log_retention_ms: int = integer(
        "log.retention.ms",
        168 * HOUR_MS,
        least=-1,
        aliases=[("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)],
        scope=CLUSTER,
    )
    log_retention_bytes: int = integer("log.retention.bytes", -1, least=LONG_MIN, scope=CLUSTER)
    log_segment_delete_delay_ms: int = integer("log.segment.delete.delay.ms", 60_000, scope=CLUSTER)
    log_flush_interval_messages: int = integer("log.flush.interval.messages", LONG_MAX, least=1, scope=CLUSTER)
    log_flush_interval_ms: int = integer("log.flush.interval.ms", LONG_MAX, scope=CLUSTER)
    log_preallocate: bool = without_effect(boolean("log.preallocate", False, scope=CLUSTER), GROWING_FILES)
    log_message_timestamp_type: str = choice("log.message.timestamp.type", "CreateTime", TIMESTAMP_TYPES, scope=CLUSTER)
    log_message_timestamp_difference_max_ms: int = integer(
        "log.message.timestamp.difference.max.ms", LONG_MAX, scope=CLUSTER
    )
    log_message_downconversion_enable: bool = boolean("log.message.downconversion.enable", True, scope=CLUSTER)
    log_cleaner_enable: bool = boolean("log.cleaner.enable", True)
    log_cleaner_threads: int = without_effect(
        integer("log.cleaner.threads", 1, least=1, most=INT_MAX, scope=CLUSTER),
        "one log is cleaned at a time, since Python runs one thread at a time",
    )
    log_cleaner_dedupe_buffer_size: int = integer(
        "log.cleaner.dedupe.buffer.size", 128 << 20, least=(1 << 20) + 1, scope=CLUSTER
    )
    """Memory for the keys of one cleaning, 24 bytes each; what does not fit is left for the next one."""
    log_cleaner_backoff_ms: int = integer("log.cleaner.backoff.ms", 15_000, scope=CLUSTER)
    """Pause between two checks when no log needs cleaning."""
    log_cleaner_delete_retention_ms: int = integer("log.cleaner.delete.retention.ms", 24 * HOUR_MS, scope=CLUSTER)
    log_cleaner_min_compaction_lag_ms: int = integer("log.cleaner.min.compaction.lag.ms", 0, scope=CLUSTER)
    log_cleaner_max_compaction_lag_ms: int = integer(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, least=1, scope=CLUSTER
    )
    log_cleaner_min_cleanable_ratio: float = number("log.cleaner.min.cleanable.ratio", 0.5, scope=CLUSTER)
    compression_type: str = choice("compression.type", "producer", CODECS, scope=CLUSTER)
    message_max_bytes: int = integer("message.max.bytes", 1_048_588, most=INT_MAX, scope=CLUSTER)

    # Replication
    default_replication_factor: int = integer("default.replication.factor", 1, least=1, most=INT_MAX)
    num_partitions: int = integer("num.partitions", 1, least=1, most=INT_MAX)
    auto_create_topics_enable: bool = boolean("auto.create.topics.enable", True)
    delete_topic_enable: bool = boolean("delete.topic.enable", True)
    min_insync_replicas: int = integer("min.insync.replicas", 1, least=1, most=INT_MAX, scope=CLUSTER)
    unclean_leader_election_enable: bool = boolean("unclean.leader.election.enable", False, scope=CLUSTER)
    replica_lag_time_max_ms: int = integer("replica.lag.time.max.ms", 30_000, least=1)
    replica_high_watermark_checkpoint_interval_ms: int = integer(
        "replica.high.watermark.checkpoint.interval.ms", 5_000, least=1
    )
    replica_fetch_wait_max_ms: int = integer("replica.fetch.wait.max.ms", 500, most=INT_MAX)
    replica_fetch_min_bytes: int = integer("replica.fetch.min.bytes", 1, most=INT_MAX)
    replica_fetch_max_bytes: int = integer("replica.fetch.max.bytes", 1 << 20, most=INT_MAX)
    replica_fetch_response_max_bytes: int = integer("replica.fetch.response.max.bytes", 10 << 20, most=INT_MAX)
    replica_fetch_backoff_ms: int = integer("replica.fetch.backoff.ms", 1_000, most=INT_MAX)
    replica_socket_timeout_ms: int = integer("replica.socket.timeout.ms", 30_000, least=1, most=INT_MAX)
    num_replica_fetchers: int = without_effect(
        integer("num.replica.fetchers", 1, least=1, scope=CLUSTER, most=INT_MAX), "one task fetches from each leader"
    )
    replica_selector_class: str = choice("replica.selector.class", "", REPLICA_SELECTORS)
    fetch_session_cache_slots: int = integer("max.incremental.fetch.session.cache.slots", 1_000, most=INT_MAX)
    fetch_max_bytes: int = integer("fetch.max.bytes", 55 << 20, least=1024, most=INT_MAX)
    producer_id_expiration_ms: int = integer("transactional.id.expiration.ms", 7 * 24 * HOUR_MS, least=1, most=INT_MAX)

    # Coordinators
    group_min_session_timeout_ms: int = integer("group.min.session.timeout.ms", 6_000, most=INT_MAX)
    group_max_session_timeout_ms: int = integer("group.max.session.timeout.ms", 30 * MINUTE_MS, most=INT_MAX)
    group_initial_rebalance_delay_ms: int = integer("group.initial.rebalance.delay.ms", 3_000, most=INT_MAX)
    group_max_size: int = integer("group.max.size", INT_MAX, least=1, most=INT_MAX)
    offset_metadata_max_bytes: int = integer("offset.metadata.max.bytes", 4_096, most=INT_MAX)
    offsets_load_buffer_size: int = integer("offsets.load.buffer.size", 5 << 20, least=1, most=INT_MAX)
    offsets_topic_compression_codec: int = integer("offsets.topic.compression.codec", 0, most=4)
    """The number of a codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    offsets_retention_minutes: int = integer("offsets.retention.minutes", 7 * 24 * 60, least=1, most=INT_MAX)
    offsets_retention_check_interval_ms: int = integer("offsets.retention.check.interval.ms", 10 * MINUTE_MS, least=1)
    offsets_commit_timeout_ms: int = integer("offsets.commit.timeout.ms", 5_000, least=1, most=INT_MAX)
    offsets_commit_required_acks: int = integer(
        "offsets.commit.required.acks", -1, least=-1, most=1, kind=ConfigType.SHORT
    )
    """Kafka's own range goes up to the replication factor, but its brokers refuse appends with 2 and above."""
    offsets_topic_num_partitions: int = integer("offsets.topic.num.partitions", 50, least=1, most=INT_MAX)
    offsets_topic_replication_factor: int = integer("offsets.topic.replication.factor", 3, least=1, most=32767)
    offsets_topic_segment_bytes: int = integer("offsets.topic.segment.bytes", 100 << 20, least=14, most=INT_MAX)
    transaction_state_log_num_partitions: int = integer(
        "transaction.state.log.num.partitions", 50, least=1, most=INT_MAX
    )
    transaction_state_log_replication_factor: int = integer(
        "transaction.state.log.replication.factor", 3, least=1, most=32767
    )
    transaction_state_log_min_isr: int = integer("transaction.state.log.min.isr", 2, least=1, most=INT_MAX)
    transaction_state_log_segment_bytes: int = integer(
        "transaction.state.log.segment.bytes", 100 << 20, least=14, most=INT_MAX
    )
    transaction_state_log_load_buffer_size: int = integer(
        "transaction.state.log.load.buffer.size", 5 << 20, least=1, most=INT_MAX
    )
    transaction_max_timeout_ms: int = integer("transaction.max.timeout.ms", 900_000, least=1, most=INT_MAX)
    transaction_abort_timed_out_interval_ms: int = integer(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms", 10_000, least=1, most=INT_MAX
    )
    transaction_remove_expired_interval_ms: int = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms", HOUR_MS, least=1, most=INT_MAX
    )

    # Client quotas
    quota_window_num: int = integer("quota.window.num", 11, least=1, most=INT_MAX)
    quota_window_size_seconds: int = integer("quota.window.size.seconds", 1, least=1, most=INT_MAX)
    quota_producer_default: int = integer("quota.producer.default", LONG_MAX, least=1)
    quota_consumer_default: int = integer("quota.consumer.default", LONG_MAX, least=1)

    # Controller
    auto_leader_rebalance_enable: bool = boolean("auto.leader.rebalance.enable", True)
    leader_imbalance_per_broker_percentage: int = integer("leader.imbalance.per.broker.percentage", 10, most=INT_MAX)
    leader_imbalance_check_interval_seconds: int = integer("leader.imbalance.check.interval.seconds", 300, least=1)
    controlled_shutdown_enable: bool = boolean("controlled.shutdown.enable", True)
    controlled_shutdown_max_retries: int = integer("controlled.shutdown.max.retries", 3, most=INT_MAX)
    controlled_shutdown_retry_backoff_ms: int = integer("controlled.shutdown.retry.backoff.ms", 5_000)

    # Delegation tokens are not supported yet; the controller's expiry task reports that.
    delegation_token_master_key: str = password("delegation.token.master.key", "")
    delegation_token_expiry_check_interval_ms: int = integer(
        "delegation.token.expiry.check.interval.ms", HOUR_MS, least=1
    )

    # klamm's own keys
    controller_only: bool = boolean("klamm.controller.only", False)
    """Makes a dedicated controller node: placement gives it no replicas."""
    controller_settle_ms: int = integer("klamm.controller.settle.ms", 3_000)
    """How long a candidate must be up, or /controller must stay broken, before a broker takes over."""
    controller_fallback: bool = boolean("klamm.controller.fallback", True)
    """If false, only candidates may become controller as long as any are configured."""
    controller_heal: bool = boolean("klamm.controller.heal", True)
    """If false, an edited /controller stays as it is until it is deleted, as in Kafka."""
    fast_failover: bool = boolean("klamm.fast.failover", False)
    """Replace a broker or controller whose port refuses connections before its ZooKeeper session ends (design D11)."""
    state_change_log_dir: str = text("klamm.state.change.log.dir", "")
    """Directory of state-change.log and state-change.json; by default the first usable one of log.dirs."""
    max_partitions_per_topic: int = integer("klamm.max.partitions.per.topic", 50_000, least=1, most=INT_MAX)
    """Limits one request: the assignment of a topic is one znode, which ZooKeeper limits to a megabyte."""
    max_producers_per_partition: int = integer("klamm.max.producers.per.partition", 100_000, least=1, most=INT_MAX)
    """A partition remembers each producer id for a week, and anybody can make ids up. About a kilobyte each."""
    max_transactional_ids: int = integer("klamm.max.transactional.ids", 1_000_000, least=1, most=INT_MAX)
    """Transactional ids of this broker that new ones are added to. Each is kept for a week."""
    group_bytes_max: int = integer("klamm.group.bytes.max", 1 << 30, least=1 << 20)
    """Memory for groups, members and offsets of this broker, as `broker/coordinators/groups/group.py` estimates it."""
    group_member_bytes_max: int = integer("klamm.group.member.bytes.max", 4 << 20, least=1 << 10, most=INT_MAX)
    """Names and metadata of the protocols of one member."""
    response_bytes_max: int = integer("klamm.response.bytes.max", 128 << 20, least=1 << 20)
    """Bytes of responses to consumers that are not sent yet. A fetch gets a sixteenth of what is left at most, so slow
    consumers cannot fill the memory."""
    http_listener: str = text("klamm.http.listener", "")
    """HOST:PORT of the HTTP listener, which serves /metrics; empty means none."""

    given: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The properties as the file gave them, also those that klamm does not know. They may hold secrets."""

    def validate(self) -> None:
        """Checks that involve more than one key."""
        if not self.zookeeper_connect:
            raise ConfigError("zookeeper.connect is missing: it must be HOST:PORT[,HOST:PORT...][/chroot]")
        version = ".".join(self.inter_broker_protocol_version.split("-")[0].split(".")[:2])
        if version not in PROTOCOL_VERSIONS:
            raise ConfigError(
                f"inter.broker.protocol.version={self.inter_broker_protocol_version} is not supported: "
                f"it must be one of {', '.join(PROTOCOL_VERSIONS)} (2.7 and above need AlterPartition and topic ids)"
            )
        if not self.log_dirs:
            raise ConfigError("log.dirs is empty: it must name at least one directory")
        names = [endpoint.listener for endpoint in self.endpoints]
        if self.inter_broker_listener not in names:
            raise ConfigError(
                f"inter.broker.listener.name={self.inter_broker_listener} is not among listeners {', '.join(names)}"
            )
        if self.control_plane_listener_name and self.control_plane_listener_name not in names:
            raise ConfigError(
                f"control.plane.listener.name={self.control_plane_listener_name} is not among "
                f"listeners {', '.join(names)}"
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group.min.session.timeout.ms={self.group_min_session_timeout_ms} must not exceed "
                f"group.max.session.timeout.ms={self.group_max_session_timeout_ms}"
            )
        self.connections_by_ip()
        if self.http_listener:
            parse_address("klamm.http.listener", self.http_listener)
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ConfigError(
                f"replica.fetch.wait.max.ms={self.replica_fetch_wait_max_ms} must not exceed "
                f"replica.lag.time.max.ms={self.replica_lag_time_max_ms}: replicas would leave the ISR while waiting"
            )

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where this broker listens."""
        return parse_endpoints("listeners", self.listeners, self._protocols())

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """The endpoints in the registration and in Metadata; by default those of the listeners."""
        return parse_endpoints("advertised.listeners", self.advertised_listeners or self.listeners, self._protocols())

    def connections_by_ip(self) -> dict[str, int]:
        """max.connections.per.ip.overrides as host name or address -> maximum number of connections."""
        limits = {}
        for entry in self.max_connections_per_ip_overrides:
            host, colon, count = entry.rpartition(":")
            if not colon or not host or not count.isdigit():
                raise ConfigError(f"max.connections.per.ip.overrides={entry!r} is not valid: it must be HOST:NUMBER")
            limits[host.strip("[]")] = int(count)
        return limits

    @property
    def inter_broker_listener(self) -> str:
        return self.inter_broker_listener_name.upper() or SecurityProtocol.PLAINTEXT.name

    @property
    def control_plane_listener(self) -> str:
        """The listener for requests of the controller: its own if one is configured, else the inter-broker listener."""
        return self.control_plane_listener_name.upper() or self.inter_broker_listener

    @property
    def shares_listener_with_clients(self) -> bool:
        """Clients and control requests use the same listener: without an authorizer any client could send them."""
        return len(self.endpoints) == 1

    def _protocols(self) -> dict[str, SecurityProtocol]:
        protocols = {protocol.name: protocol for protocol in SecurityProtocol}
        for entry in self.listener_security_protocol_map:
            listener, _, protocol = entry.partition(":")
            if protocol.upper() not in SecurityProtocol.__members__:
                raise ConfigError(
                    f"listener.security.protocol.map={entry!r} is not valid: it must be LISTENER:PROTOCOL with a "
                    f"protocol of {', '.join(SecurityProtocol.__members__)}"
                )
            protocols[listener.strip().upper()] = SecurityProtocol[protocol.upper()]
        return protocols


def parse_address(key: str, value: str) -> tuple[str, int]:
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{key}={value!r} is not valid: it must be HOST:PORT")
    return host.strip("[]"), int(port)


def parse_endpoints(
    key: str, values: tuple[str, ...], protocols: Mapping[str, SecurityProtocol]
) -> tuple[Endpoint, ...]:
    endpoints: list[Endpoint] = []
    for value in values:
        name, separator, address = value.partition("://")
        host, colon, port = address.rpartition(":")
        listener = name.strip().upper()
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{key}={value!r} is not valid: it must be NAME://HOST:PORT")
        if listener not in protocols:
            raise ConfigError(f"{key}={value!r}: listener {listener} is missing from listener.security.protocol.map")
        if any(endpoint.listener == listener for endpoint in endpoints):
            raise ConfigError(f"{key}: listener {listener} appears twice")
        endpoints.append(Endpoint(listener, host.strip("[]"), int(port), protocols[listener]))
    return tuple(endpoints)


def read_broker_config(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """Read Kafka's own server.properties. Returns the configuration and warnings.

    One warning names all keys of Kafka that have no effect, so that a stock file does not bury a typo: a key that Kafka
    does not have gets its own warning. An unknown key of klamm is an error, and so is one that asks for KRaft.
    """
    properties = dict(properties)
    if "log.dirs" not in properties and "log.dir" in properties:
        properties["log.dirs"] = properties["log.dir"]
    properties.pop("log.dir", None)
    if "process.roles" in properties:
        raise ConfigError("process.roles is for KRaft, but klamm runs with ZooKeeper: remove it")
    config, unknown = read_settings(BrokerConfig, properties)
    for key in unknown:
        if key.startswith("klamm."):
            raise ConfigError(f"unknown key {key}{_suggestion(key)}")
    config = replace(config, given=properties)
    config.validate()
    if config.broker_id_generation_enable and config.broker_id > config.reserved_broker_max_id:
        raise ConfigError(
            f"broker.id={config.broker_id} may be generated for another broker: it must not exceed "
            f"reserved.broker.max.id={config.reserved_broker_max_id} unless broker.id.generation.enable=false"
        )
    refuse_security(properties, (*config.endpoints, *config.advertised))
    foreign = [key for key in unknown if not reason_not_supported(key)]
    warnings = [f"unknown key {key}{_suggestion(key) or ', which has no effect'}" for key in foreign]
    harmless = sorted({*unknown, *keys_without_effect(BrokerConfig, properties)} - set(foreign))
    if harmless:
        warnings.append(f"no effect in klamm (docs/configuration.md says why): {', '.join(harmless)}")
    return config, warnings


def _suggestion(key: str) -> str:
    """The known key that this one is probably meant to be."""
    known = [
        name for main, (_, setting) in settings_of(BrokerConfig).items() for name in (main, *dict(setting.aliases))
    ]
    similar = get_close_matches(key, known, n=1, cutoff=TYPO_SIMILARITY)
    return f": did you mean {similar[0]}?" if similar else ""


VERSION_OF_KAFKA: Final = r"(0\.8\.[0-2]|0\.9\.0|0\.10\.[0-2]|0\.11\.0|1\.[01]|2\.[0-8]|3\.[0-9])(\.\d+)*(-IV\d+)?"
THROTTLED_REPLICA: Final = r"\*|\d+:\d+"
"""Every replica, or one as PARTITION:BROKER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerThrottles:
    """Keys that only /config/brokers/<id> has: no file and no default for all brokers (KIP-73, KIP-113)."""

    leader_rate: int = integer("leader.replication.throttled.rate", LONG_MAX, scope=Scope.PER_BROKER)
    follower_rate: int = integer("follower.replication.throttled.rate", LONG_MAX, scope=Scope.PER_BROKER)
    log_dir_move_rate: int = without_effect(
        integer("replica.alter.log.dirs.io.max.bytes.per.second", LONG_MAX, scope=Scope.PER_BROKER),
        "moves between the directories of a broker are not throttled",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What /config/topics/<topic> may override; the broker's values are the defaults."""

    cleanup_policy: tuple[str, ...] = words("cleanup.policy", ("delete",), allowed=("compact", "delete"))
    compression_type: str = choice("compression.type", "producer", CODECS)
    delete_retention_ms: int = integer("delete.retention.ms", 24 * HOUR_MS)
    file_delete_delay_ms: int = integer("file.delete.delay.ms", 60_000)
    flush_messages: int = integer("flush.messages", LONG_MAX)
    flush_ms: int = integer("flush.ms", LONG_MAX)
    index_interval_bytes: int = integer("index.interval.bytes", 4096, most=INT_MAX)
    max_compaction_lag_ms: int = integer("max.compaction.lag.ms", LONG_MAX, least=1)
    min_compaction_lag_ms: int = integer("min.compaction.lag.ms", 0)
    max_message_bytes: int = integer("max.message.bytes", 1_048_588, most=INT_MAX)
    message_downconversion_enable: bool = boolean("message.downconversion.enable", True)
    message_format_version: str = without_effect(
        matching("message.format.version", "2.6", VERSION_OF_KAFKA, "a version of Kafka, such as 2.5"),
        "batches are always stored in format 2, which Kafka has since 0.11",
    )
    message_timestamp_difference_max_ms: int = integer("message.timestamp.difference.max.ms", LONG_MAX)
    message_timestamp_type: str = choice("message.timestamp.type", "CreateTime", TIMESTAMP_TYPES)
    min_cleanable_dirty_ratio: float = number("min.cleanable.dirty.ratio", 0.5)
    min_insync_replicas: int = integer("min.insync.replicas", 1, least=1, most=INT_MAX)
    unclean_leader_election_enable: bool = boolean("unclean.leader.election.enable", False)
    preallocate: bool = without_effect(boolean("preallocate", False), GROWING_FILES)
    retention_bytes: int = integer("retention.bytes", -1, least=LONG_MIN)
    retention_ms: int = integer("retention.ms", 168 * HOUR_MS, least=-1)
    segment_bytes: int = integer("segment.bytes", 1 << 30, least=14, most=INT_MAX)
    segment_index_bytes: int = integer("segment.index.bytes", 10 << 20, most=INT_MAX)
    segment_jitter_ms: int = integer("segment.jitter.ms", 0)
    segment_ms: int = integer("segment.ms", 168 * HOUR_MS, least=1)
    leader_replication_throttled_replicas: tuple[str, ...] = words(
        "leader.replication.throttled.replicas", (), pattern=THROTTLED_REPLICA
    )
    follower_replication_throttled_replicas: tuple[str, ...] = words(
        "follower.replication.throttled.replicas", (), pattern=THROTTLED_REPLICA
    )


TOPIC_DEFAULTS_FROM_BROKER: Final = {
    "cleanup_policy": "log_cleanup_policy",
    "compression_type": "compression_type",
    "delete_retention_ms": "log_cleaner_delete_retention_ms",
    "file_delete_delay_ms": "log_segment_delete_delay_ms",
    "flush_messages": "log_flush_interval_messages",
    "flush_ms": "log_flush_interval_ms",
    "index_interval_bytes": "log_index_interval_bytes",
    "max_compaction_lag_ms": "log_cleaner_max_compaction_lag_ms",
    "min_compaction_lag_ms": "log_cleaner_min_compaction_lag_ms",
    "max_message_bytes": "message_max_bytes",
    "message_downconversion_enable": "log_message_downconversion_enable",
    "message_timestamp_difference_max_ms": "log_message_timestamp_difference_max_ms",
    "message_timestamp_type": "log_message_timestamp_type",
    "min_cleanable_dirty_ratio": "log_cleaner_min_cleanable_ratio",
    "min_insync_replicas": "min_insync_replicas",
    "unclean_leader_election_enable": "unclean_leader_election_enable",
    "preallocate": "log_preallocate",
    "retention_bytes": "log_retention_bytes",
    "retention_ms": "log_retention_ms",
    "segment_bytes": "log_segment_bytes",
    "segment_index_bytes": "log_index_size_max_bytes",
    "segment_jitter_ms": "log_roll_jitter_ms",
    "segment_ms": "log_roll_ms",
}
"""Topic field -> the broker field with its default (Kafka calls it the synonym)."""


def topic_defaults(broker: BrokerConfig) -> TopicConfig:
    return TopicConfig(**{topic: getattr(broker, name) for topic, name in TOPIC_DEFAULTS_FROM_BROKER.items()})


def topic_config(defaults: TopicConfig, overrides: Mapping[str, str | None]) -> TopicConfig:
    """Apply overrides to the broker's defaults. An unknown key or an invalid value raises INVALID_CONFIG."""
    settings = settings_of(TopicConfig)
    values: dict[str, Any] = {}
    for key, raw in overrides.items():
        if key not in settings:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {key}")
        if raw is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key} has no value")
        name, setting = settings[key]
        try:
            values[name] = setting.read(raw)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    config = replace(defaults, **values)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} exceeds "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}",
        )
    return config


def topic_keys_without_effect(overrides: Iterable[str]) -> dict[str, str]:
    """The overridden keys that change nothing, with the reason."""
    return keys_without_effect(TopicConfig, overrides)


def broker_id_of(config: BrokerConfig) -> BrokerId:
    if config.broker_id < 0:
        raise ConfigError("broker.id is missing: it must be an integer of at least 0")
    return BrokerId(config.broker_id)
