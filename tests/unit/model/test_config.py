from __future__ import annotations

import pytest

from klamm.model.config import (
    BrokerConfig,
    BrokerThrottles,
    TopicConfig,
    read_broker_config,
    topic_config,
    topic_defaults,
    topic_keys_without_effect,
)
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.settings import as_text, settings_of

MINIMAL = {"broker.id": "1", "zookeeper.connect": "zk:2181"}


def test_defaults_are_kafkas() -> None:
    config, warnings = read_broker_config(MINIMAL)
    assert warnings == []
    assert config.zookeeper_session_timeout_ms == 18_000
    assert config.replica_lag_time_max_ms == 30_000
    assert config.message_max_bytes == 1_048_588
    assert config.inter_broker_protocol_version == "2.6"
    assert config.connections_max_idle_ms == 600_000
    assert config.max_connections == config.max_connections_per_ip == 2**31 - 1
    assert config.http_listener == ""


def test_connections_by_address() -> None:
    config, _ = read_broker_config({**MINIMAL, "max.connections.per.ip.overrides": "10.0.0.1:5, [::1]:7,host:0"})
    assert config.connections_by_ip() == {"10.0.0.1": 5, "::1": 7, "host": 0}


STOCK = """
num.network.threads num.io.threads socket.send.buffer.bytes socket.receive.buffer.bytes socket.request.max.bytes
num.partitions num.recovery.threads.per.data.dir offsets.topic.replication.factor
transaction.state.log.replication.factor transaction.state.log.min.isr log.retention.hours log.segment.bytes
log.retention.check.interval.ms zookeeper.connection.timeout.ms
"""


def test_a_stock_file_gives_one_warning_and_a_typo_its_own() -> None:
    stock = dict.fromkeys(STOCK.split(), "1024")
    _, warnings = read_broker_config({**MINIMAL, **stock})
    assert len(warnings) == 1
    assert warnings[0].startswith("no effect in klamm (docs/configuration.md says why): ")
    assert "num.io.threads, num.network.threads, " in warnings[0]
    _, warnings = read_broker_config({**MINIMAL, **stock, "log.retention.minute": "5"})
    assert warnings[0] == "unknown key log.retention.minute: did you mean log.retention.minutes?"
    assert len(warnings) == 2


def test_keys_without_effect_share_a_warning_and_foreign_ones_do_not() -> None:
    keys = {"num.replica.fetchers": "4", "log.preallocate": "true"}
    _, warnings = read_broker_config({**MINIMAL, **keys, "background.threads": "10", "my.key": "1"})
    assert warnings == [
        "unknown key my.key, which has no effect",
        "no effect in klamm (docs/configuration.md says why): "
        "background.threads, log.preallocate, num.replica.fetchers",
    ]


def test_keys_that_stop_the_start() -> None:
    with pytest.raises(ConfigError, match=r"^unknown key klamm.fast.failver: did you mean klamm.fast.failover\?$"):
        read_broker_config({**MINIMAL, "klamm.fast.failver": "true"})
    with pytest.raises(ConfigError, match=r"^process.roles is for KRaft"):
        read_broker_config({**MINIMAL, "process.roles": "broker"})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("broker.id", "one", "broker.id='one' is not valid: it must be an integer from -1"),
        ("num.partitions", "0", "num.partitions='0' is not valid: it must be an integer from 1"),
        ("num.replica.fetchers", "0", "it must be an integer from 1"),
        ("delete.topic.enable", "yes", "delete.topic.enable='yes' is not valid: it must be true or false"),
        ("compression.type", "brotli", "it must be one of producer, uncompressed"),
        ("listeners", "PLAINTEXT:9092", "listeners='PLAINTEXT:9092' is not valid: it must be NAME://HOST:PORT"),
        ("listeners", "PLAINTEXT://:1,PLAINTEXT://:2", "listener PLAINTEXT appears twice"),
        ("inter.broker.protocol.version", "3.0", "it must be one of 2.4, 2.5, 2.6"),
        ("inter.broker.listener.name", "INTERNAL", "is not among listeners PLAINTEXT"),
        ("klamm.http.listener", "8080", "klamm.http.listener='8080' is not valid: it must be HOST:PORT"),
        ("klamm.http.listener", "localhost:99999", "is not valid: it must be HOST:PORT"),
        ("connections.max.idle.ms", "-2", "it must be an integer of at least -1"),
        ("max.connections.per.ip.overrides", "10.0.0.1", "'10.0.0.1' is not valid: it must be HOST:NUMBER"),
        ("replica.fetch.wait.max.ms", "40000", "must not exceed replica.lag.time.max.ms=30000"),
    ],
)
def test_an_invalid_value_stops_with_key_value_and_what_is_allowed(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_broker_config({**MINIMAL, key: value})
    assert says in str(refused.value)


def test_the_finest_unit_wins() -> None:
    config, _ = read_broker_config({**MINIMAL, "log.retention.hours": "1", "log.retention.minutes": "2"})
    assert config.log_retention_ms == 120_000


def test_a_topic_overrides_the_broker() -> None:
    defaults = topic_defaults(BrokerConfig(log_segment_bytes=1000, min_insync_replicas=2))
    config = topic_config(defaults, {"retention.ms": "5"})
    assert (config.segment_bytes, config.min_insync_replicas, config.retention_ms) == (1000, 2, 5)


@pytest.mark.parametrize("kind", [TopicConfig, BrokerConfig, BrokerThrottles])
def test_every_default_may_be_written_back(kind: type) -> None:
    """Clients of AlterConfigs describe a resource, change one key and write them all."""
    for key, (name, setting) in settings_of(kind).items():
        default = getattr(kind(), name)
        written = as_text(default)
        assert written is None or setting.read(written) == default, key


@pytest.mark.parametrize(
    ("key", "taken", "refused"),
    [
        ("retention.bytes", ["-2", "+7", " 5 "], ["1_000", "1.5", "1e2", str(2**63)]),
        ("min.cleanable.dirty.ratio", ["0", "1e-2"], ["0_1", "1.5", "-1"]),
        ("message.format.version", ["0.10.0.0", "0.9.0", "2.5-IV0", "2.4.1", "3.9"], ["", "1.5", "0.5", "100", "gzip"]),
        ("leader.replication.throttled.replicas", ["", "*", "0:1", "0:1, 1:2"], ["1", "0-1", "none", "0:1,x"]),
        ("follower.replication.throttled.replicas", ["", "*", "0:1", "0:1, 1:2"], ["1", "0-1", "none", "0:1,x"]),
    ],
)
def test_values_that_apache_kafka_takes_and_refuses(key: str, taken: list[str], refused: list[str]) -> None:
    _, setting = settings_of(TopicConfig)[key]
    for value in taken:
        setting.read(value)
    for value in refused:
        with pytest.raises(ConfigError):
            setting.read(value)


@pytest.mark.parametrize("overrides", [{"no.such.key": "true"}, {"segment.bytes": "1"}, {"retention.ms": None}])
def test_bad_topic_settings_are_refused_with_kafkas_code(overrides: dict[str, str | None]) -> None:
    with pytest.raises(KafkaError) as refused:
        topic_config(topic_defaults(BrokerConfig()), overrides)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_topic_keys_without_effect_are_told() -> None:
    found = topic_keys_without_effect({"preallocate": "true", "retention.ms": "5", "message.format.version": "2.4"})
    assert list(found) == ["preallocate", "message.format.version"]
    assert all(found.values())


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"listeners": "SASL_SSL://:9093", "inter.broker.listener.name": "SASL_SSL"}, "SASL_SSL of listener SASL_SSL"),
        (
            {
                "listeners": "PLAINTEXT://:1,CLIENT://:2",
                "listener.security.protocol.map": "CLIENT:SSL,PLAINTEXT:PLAINTEXT",
            },
            "SSL of listener CLIENT",
        ),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "authorizer.class.name"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-512"}, "sasl.enabled.mechanisms"),
        ({"ssl.keystore.location": "/etc/k.jks", "ssl.client.auth": "required"}, "ssl.client.auth, ssl.keystore"),
        ({"security.inter.broker.protocol": "SASL_PLAINTEXT"}, "security.inter.broker.protocol"),
        ({"listener.name.client.plain.sasl.jaas.config": "x"}, "listener.name.client.plain.sasl.jaas.config"),
        ({"super.users": "User:admin"}, "super.users"),
    ],
)
def test_a_secured_configuration_does_not_start_open(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=f"plain text: remove .*{named}"):
        read_broker_config({**MINIMAL, **properties})


def test_settings_that_leave_security_off_are_fine() -> None:
    off = {
        "security.inter.broker.protocol": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
        "ssl.client.auth": "none",
        "sasl.enabled.mechanisms": "",
        "ssl.protocol": "TLSv1.2",
    }
    read_broker_config({**MINIMAL, **off})
