"""Which level of a broker's configuration wins, and what DescribeConfigs says about it."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.config import read_broker_config, topic_defaults
from klamm.model.config_levels import (
    ConfigEntry,
    ConfigLevels,
    Source,
    Synonym,
    check_broker_overrides,
    levels_of,
    usable_overrides,
)
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.settings import ConfigType

MINIMAL = {"broker.id": "1", "zookeeper.connect": "zk:2181"}


def levels(file: dict[str, str] | None = None, all_brokers: Any = None, broker: Any = None) -> ConfigLevels:
    config, _ = read_broker_config({**MINIMAL, **(file or {})})
    return levels_of(config, all_brokers or {}, broker or {})


def entry(found: list[ConfigEntry], key: str) -> ConfigEntry:
    (one,) = [entry for entry in found if entry.key == key]
    return one


@pytest.mark.parametrize(
    ("file", "all_brokers", "broker", "value", "source"),
    [
        ({}, {}, {}, "4096", Source.BUILT_IN),
        ({"log.index.interval.bytes": "1"}, {}, {}, "1", Source.FILE),
        ({"log.index.interval.bytes": "4096"}, {}, {}, "4096", Source.FILE),
        ({"log.index.interval.bytes": "1"}, {"log.index.interval.bytes": "2"}, {}, "2", Source.ALL_BROKERS),
        ({}, {"log.index.interval.bytes": "2"}, {"log.index.interval.bytes": "3"}, "3", Source.BROKER),
    ],
)
def test_the_highest_level_wins(file: Any, all_brokers: Any, broker: Any, value: str, source: Source) -> None:
    found = levels(file, all_brokers, broker)
    for key, entries in (
        ("log.index.interval.bytes", found.entries()),
        ("index.interval.bytes", found.topic_entries(topic_defaults(found.config), {})),
    ):
        one = entry(entries, key)
        assert (one.value, one.source, one.read_only, one.type) == (value, source, False, ConfigType.INT)
    assert found.config.log_index_interval_bytes == int(value)


def test_synonyms_in_order_of_precedence() -> None:
    key, other = "message.max.bytes", "max.message.bytes"
    found = levels({key: "4"}, {key: "3"}, {key: "2"})
    broker = (
        Synonym(key, "2", Source.BROKER),
        Synonym(key, "3", Source.ALL_BROKERS),
        Synonym(key, "4", Source.FILE),
        Synonym(key, "1048588", Source.BUILT_IN),
    )
    assert entry(found.entries(), key).synonyms == broker
    topic = entry(found.topic_entries(topic_defaults(found.config), {other: "1"}), other)
    assert topic.synonyms == (Synonym(other, "1", Source.TOPIC), *broker)
    assert (topic.value, topic.source) == ("1", Source.TOPIC)


def test_a_coarser_unit_of_the_file_yields_to_a_dynamic_key_and_is_no_synonym() -> None:
    file = {"log.retention.hours": "1"}
    found = levels(file)
    assert found.config.log_retention_ms == 3_600_000
    topic = entry(found.topic_entries(topic_defaults(found.config), {}), "retention.ms")
    assert (topic.value, topic.source, topic.synonyms) == ("3600000", Source.BUILT_IN, ())
    hours = entry(found.entries(), "log.retention.hours")
    assert (hours.value, hours.source, hours.read_only) == ("1", Source.FILE, True)
    changed = levels(file, {"log.retention.ms": "5"})
    assert changed.config.log_retention_ms == 5
    assert [synonym.value for synonym in entry(changed.entries(), "log.retention.ms").synonyms] == ["5", "1"]


def test_secrets_are_never_shown() -> None:
    found = levels({"delegation.token.master.key": "hush", "my.password": "hush"}).entries()
    for key in ("delegation.token.master.key", "my.password"):
        one = entry(found, key)
        assert (one.value, one.sensitive, one.read_only, one.source) == (None, True, True, Source.FILE)
    assert "hush" not in repr(found)


def test_throttles_are_listed_when_they_are_set() -> None:
    key = "leader.replication.throttled.rate"
    assert key not in {one.key for one in levels().entries()}
    found = levels(broker={key: "10"})
    assert found.throttles.leader_rate == 10
    one = entry(found.entries(), key)
    assert (one.value, one.source, one.read_only) == ("10", Source.BROKER, False)


@pytest.mark.parametrize(
    ("overrides", "for_one_broker", "says"),
    [
        ({"num.partitions": "2"}, True, "num.partitions cannot be changed while the broker runs"),
        ({"listeners": "PLAINTEXT://:1"}, True, "listeners cannot be changed while the broker runs"),
        ({"no.such.key": "2"}, True, "Unknown broker config name: no.such.key"),
        ({"log.segment.bytes": "1"}, True, "log.segment.bytes='1' is not valid: it must be an integer from 14"),
        ({"log.segment.bytes": ""}, False, "log.segment.bytes='' is not valid"),
        ({"leader.replication.throttled.rate": "5"}, False, "can be set for one broker, not for all"),
        ({"leader.replication.throttled.rate": "-1"}, True, "it must be an integer of at least 0"),
        ({"num.recovery.threads.per.data.dir": "3"}, True, "one change may at most double or halve the current 1"),
        ({"max.connections.per.ip.overrides": "here"}, True, "it must be HOST:NUMBER"),
    ],
)
def test_changes_that_are_refused(overrides: dict[str, str], for_one_broker: bool, says: str) -> None:
    with pytest.raises(KafkaError, match=says) as refused:
        check_broker_overrides(levels(), overrides, for_one_broker=for_one_broker)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_changes_that_are_allowed() -> None:
    check_broker_overrides(levels(), {"log.segment.bytes": "1000"}, for_one_broker=False)
    check_broker_overrides(levels(), {"num.recovery.threads.per.data.dir": "2"}, for_one_broker=True)
    check_broker_overrides(levels(), {"leader.replication.throttled.rate": "5"}, for_one_broker=True)


def test_what_cannot_be_used_is_left_out_with_its_reason() -> None:
    usable, refused = usable_overrides({"log.retention.ms": "5", "log.roll.ms": "x", "my": "1"}, for_one_broker=True)
    assert usable == {"log.retention.ms": "5"}
    assert list(refused) == ["log.roll.ms", "my"] and all(refused.values())
