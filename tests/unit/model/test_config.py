from __future__ import annotations

import pytest

from klamm.model.config import (
    BrokerConfig,
    read_broker_config,
    topic_config,
    topic_defaults,
    topic_keys_without_effect,
)
from klamm.model.errors import ConfigError, ErrorCode, KafkaError

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


def test_an_unsupported_key_is_named_in_a_warning() -> None:
    _, warnings = read_broker_config({**MINIMAL, "num.io.threads": "8"})
    assert warnings == ["num.io.threads is not supported and has no effect"]


def test_a_key_without_effect_is_named_in_a_warning_with_the_reason() -> None:
    keys = {"num.replica.fetchers": "4", "log.preallocate": "true", "log.cleaner.threads": "2"}
    _, warnings = read_broker_config({**MINIMAL, **keys, "background.threads": "10"})
    assert warnings == [
        "background.threads is not supported and has no effect",
        "log.cleaner.threads has no effect: one log is cleaned at a time, since Python runs one thread at a time",
        "log.preallocate has no effect: segment files grow as they are written",
        "num.replica.fetchers has no effect: one task fetches from each leader",
    ]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("broker.id", "one", "broker.id='one' is not valid: it must be an integer from -1"),
        ("num.partitions", "0", "num.partitions='0' is not valid: it must be an integer from 1"),
        ("num.replica.fetchers", "0", "it must be an integer of at least 1"),
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


@pytest.mark.parametrize("overrides", [{"no.such.key": "true"}, {"segment.bytes": "1"}, {"retention.ms": None}])
def test_bad_topic_settings_are_refused_with_kafkas_code(overrides: dict[str, str | None]) -> None:
    with pytest.raises(KafkaError) as refused:
        topic_config(topic_defaults(BrokerConfig()), overrides)
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_topic_keys_without_effect_are_told() -> None:
    found = topic_keys_without_effect({"preallocate": "true", "retention.ms": "5", "message.format.version": "2.4"})
    assert list(found) == ["preallocate", "message.format.version"]
    assert all(found.values())
