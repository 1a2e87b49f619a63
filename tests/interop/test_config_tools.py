"""Configurations by Apache Kafka's own tools, old and new, and by other admin clients, on one cluster of klamm.

Kafka also tells the type, default and scope of each of its keys: those of ours are compared with them.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import KafkaAdminClient

from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.settings import as_text, settings_of
from klamm.testing.apache_kafka import run_tool
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until

OLD, NEW = "2.5.1", "3.9.1"
PLAIN = "plain"
TOPIC_TOOL = {OLD: "kafka.admin.TopicCommand", NEW: "org.apache.kafka.tools.TopicCommand"}
CONFIG_TOOL = "kafka.admin.ConfigCommand"
DIFFERENT_DEFAULTS = {
    "advertised.listeners",
    "control.plane.listener.name",
    "delegation.token.master.key",
    "inter.broker.listener.name",
    "inter.broker.protocol.version",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
    "log.flush.interval.ms",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "message.format.version",
    "zookeeper.connection.timeout.ms",
}
"""Kafka has null, and computes the value from other keys; its protocol version is its own."""
NOT_CHANGED_AT_RUN_TIME = {"listeners", "advertised.listeners", "listener.security.protocol.map"}
QUOTA_RECORDS = 24
"""Each has 10 kB. A quota of 20 kB/s lets about 200 kB pass at once; every further record waits for half a second."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("configs"), brokers=2) as cluster:
        cluster.create_topic(PLAIN)
        for broker in cluster.broker_ids:
            wait_until("the topic at every broker", lambda broker=broker: cluster.partitions(PLAIN, seen_by=broker))
        yield cluster


def declared_by_kafka(page: str) -> dict[str, dict[str, str]]:
    """Key -> the rows of its table, in the page that Kafka's documentation is made of."""
    found = {}
    for item in re.findall(r"<li>(.*?)</li>", page, re.DOTALL):
        (key,) = re.findall(r'<h4><a id="([^"]+)"', item)
        rows = re.findall(r"<tr><th>(.*?):?</th><td>(.*?)</td></tr>", item, re.DOTALL)
        found[key] = {name: html.unescape(re.sub("<[^>]+>", "", value)) for name, value in rows}
    return found


@pytest.mark.parametrize(
    ("main", "cls"), [("kafka.server.KafkaConfig", BrokerConfig), ("kafka.log.LogConfig", TopicConfig)]
)
async def test_settings_are_declared_as_in_kafka(main: str, cls: type) -> None:
    kafka = declared_by_kafka((await run_tool(OLD, main)).output)
    defaults = cls()
    wrong = []
    for key, (name, setting) in settings_of(cls).items():
        if key.startswith("klamm."):
            continue
        theirs = kafka[key]
        if theirs["Type"] != setting.type.name.lower():
            wrong.append(f"{key} is of type {theirs['Type']}, not {setting.type.name}")
        default = theirs["Default"].replace("null", "").strip('"')
        if key not in DIFFERENT_DEFAULTS and default != (as_text(getattr(defaults, name)) or ""):
            wrong.append(f"{key} has the default {default}")
        scope = theirs.get("Update Mode", setting.scope.value)
        if scope != setting.scope.value and key not in NOT_CHANGED_AT_RUN_TIME:
            wrong.append(f"{key} is {scope}, not {setting.scope.value}")
    assert not wrong


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_topics(cluster: KlammCluster, version: str) -> None:
    bootstrap = ("--bootstrap-server", cluster.bootstrap)
    name = f"tools-{version}"
    about = (*bootstrap, "--entity-type", "topics", "--entity-name", name)
    await run_tool(
        version,
        TOPIC_TOOL[version],
        *(*bootstrap, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=1000"),
    )
    described = await run_tool(version, TOPIC_TOOL[version], *bootstrap, "--describe", "--topic", name)
    assert "retention.ms=1000" in described.output and described.output.count("Leader:") == 2, described.output
    changes = ("--add-config", "cleanup.policy=[compact,delete],segment.ms=5000", "--delete-config", "retention.ms")
    await run_tool(version, CONFIG_TOOL, *about, "--alter", *changes)
    listed = await run_tool(version, CONFIG_TOOL, *about, "--describe")
    assert "cleanup.policy=compact,delete" in listed.output and "segment.ms=5000" in listed.output, listed.output
    assert "retention.ms=" not in listed.output
    refused = await run_tool(version, CONFIG_TOOL, *about, "--alter", "--add-config", "segment.ms=soon", check=False)
    assert refused.code != 0 and "it must be an integer of at least 1" in refused.output + refused.errors


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_brokers_and_loggers(cluster: KlammCluster, version: str) -> None:
    bootstrap = ("--bootstrap-server", cluster.bootstrap)
    everyone = (*bootstrap, "--entity-type", "brokers", "--entity-default")
    one = (*bootstrap, "--entity-type", "brokers", "--entity-name", str(cluster.broker_ids[0]))
    await run_tool(version, CONFIG_TOOL, *everyone, "--alter", "--add-config", "log.retention.ms=77777")
    await run_tool(version, CONFIG_TOOL, *one, "--alter", "--add-config", "log.segment.bytes=5555555")
    found = await run_tool(version, CONFIG_TOOL, *one, "--describe")
    assert "log.segment.bytes=5555555 sensitive=false" in found.output, found.output
    wait_until("the new default to apply", lambda: topic_values(cluster, "retention.ms") == {"77777"})
    assert "log.retention.ms=77777" in (await run_tool(version, CONFIG_TOOL, *everyone, "--describe")).output
    refused = await run_tool(version, CONFIG_TOOL, *one, "--alter", "--add-config", "num.partitions=2", check=False)
    assert refused.code != 0 and "cannot be changed while the broker runs" in refused.output + refused.errors
    for who, key in ((everyone, "log.retention.ms"), (one, "log.segment.bytes")):
        await run_tool(version, CONFIG_TOOL, *who, "--alter", "--delete-config", key)
    logger = (*bootstrap, "--entity-type", "broker-loggers", "--entity-name", str(cluster.broker_ids[0]))
    await run_tool(version, CONFIG_TOOL, *logger, "--alter", "--add-config", "klamm.net.listener=DEBUG")
    assert "klamm.net.listener=DEBUG" in (await run_tool(version, CONFIG_TOOL, *logger, "--describe")).output


def topic_values(cluster: KlammCluster, key: str) -> set[str | None]:
    """The value of a key in a topic without settings of its own, as every broker tells it."""
    found = set()
    for broker in cluster.bootstrap.split(","):
        admin = AdminClient({"bootstrap.servers": broker})
        resource = ConfigResource(ResourceType.TOPIC, PLAIN)
        (described,) = admin.describe_configs([resource]).values()
        found.add(described.result(10)[key].value)
    return found


def test_librdkafka(cluster: KlammCluster) -> None:
    cluster.create_topic("rdkafka")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def topic(*changes: ConfigEntry) -> ConfigResource:
        return ConfigResource(ResourceType.TOPIC, "rdkafka", incremental_configs=list(changes) or None)

    set_it = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    append = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    (done,) = admin.incremental_alter_configs([topic(set_it, append)]).values()
    done.result(10)
    (described,) = admin.describe_configs([topic()]).values()
    found = described.result(10)
    assert (found["max.message.bytes"].value, found["max.message.bytes"].source) == ("5000", 1)
    assert found["cleanup.policy"].value == "delete,compact"
    assert list(found["max.message.bytes"].synonyms) == ["max.message.bytes", "message.max.bytes"]


def test_kafka_python(cluster: KlammCluster) -> None:
    cluster.create_topic("python", retention_ms=123)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        broker = PythonResource("BROKER", str(cluster.broker_ids[1]))
        found = repr(admin.describe_configs([PythonResource("TOPIC", "python"), broker]))
        assert re.search(r"retention\.ms.{0,80}'123'", found), found
        assert "'broker': {'2': {" in found, "it leaves out what is not dynamic"
    finally:
        admin.close()


async def test_quotas_are_set_by_tools_and_felt_by_clients(cluster: KlammCluster) -> None:
    """The old tool writes to ZooKeeper, the new one asks a broker. librdkafka tells how long it was throttled."""
    cluster.create_topic("throttled", replication_factor=1)
    slow = ("--entity-type", "clients", "--entity-name", "slow", "--alter", "--add-config")
    await run_tool(NEW, CONFIG_TOOL, "--bootstrap-server", cluster.bootstrap, *slow, "producer_byte_rate=20000")
    await run_tool(OLD, CONFIG_TOOL, "--zookeeper", cluster.zookeeper, *slow, "consumer_byte_rate=20000")
    about = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "clients", "--entity-name", "slow", "--describe")
    for key in ("producer_byte_rate", "consumer_byte_rate"):
        assert f"{key}=20000" in (await run_tool(NEW, CONFIG_TOOL, *about)).output

    def throttled(client_id: str, work: Callable[[dict[str, Any]], None]) -> float:
        """The longest throttle time that the client was told, in seconds."""
        told: list[float] = [0.0]
        config = {"bootstrap.servers": cluster.bootstrap, "client.id": client_id}
        work(config | {"throttle_cb": lambda event: told.append(event.throttle_time)})
        return max(told)

    def produce(config: dict[str, Any]) -> None:
        producer = Producer(config)
        for _ in range(QUOTA_RECORDS):
            producer.produce("throttled", b"x" * 10_000, partition=0)
            producer.flush(30)

    def consume(config: dict[str, Any]) -> None:
        consumer = Consumer(
            config | {"group.id": "none", "enable.auto.commit": False, "max.partition.fetch.bytes": 50_000}
        )
        consumer.assign([TopicPartition("throttled", 0, 0)])
        found = 0
        while found < QUOTA_RECORDS:
            message = consumer.poll(30)
            assert message is not None, f"{found} records"
            assert message.error() is None
            found += 1
        consumer.close()

    assert throttled("fast", produce) == 0
    assert throttled("slow", produce) > 0.1
    assert throttled("fast", consume) == 0
    assert throttled("slow", consume) > 0.1


def test_delete_records(cluster: KlammCluster) -> None:
    cluster.create_topic("shortened", replication_factor=2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(10):
        producer.produce("shortened", str(number), partition=0)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def delete(offset: int) -> int:
        (done,) = admin.delete_records([TopicPartition("shortened", 0, offset)]).values()
        return int(done.result(30).low_watermark)

    assert delete(4) == 4
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "none", "auto.offset.reset": "earliest"})
    assert consumer.get_watermark_offsets(TopicPartition("shortened", 0), timeout=10) == (4, 10)
    assert delete(-1) == 10
    with pytest.raises(KafkaException) as refused:
        delete(11)
    assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    consumer.close()


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_acls_are_refused(cluster: KlammCluster, version: str) -> None:
    bootstrap = ("--bootstrap-server", cluster.bootstrap)
    listed = await run_tool(version, "kafka.admin.AclCommand", *bootstrap, "--list", check=False)
    assert "No Authorizer is configured on the broker" in listed.output + listed.errors
