"""KIP-392 with a real client: it reads from the replica in its own rack, and from the leader if that one dies."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.testing.cluster import KlammCluster, running_cluster

from .matrix import CLIENTS, member

TOPIC = "racks"
PROPERTIES = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
(JAVA,) = [client for client in CLIENTS if client.name == "Java 3.9.1"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path, http=True, properties=PROPERTIES) as running:
        for broker in running.broker_ids:
            running.stop(broker)
            running.start(broker, {"broker.rack": f"rack-{broker}"})
        running.wait_until_healthy()
        yield running


def bytes_out(cluster: KlammCluster, broker: int) -> float:
    """What the broker has sent of the topic to consumers."""
    text = urllib.request.urlopen(cluster.metrics_url(broker), timeout=30).read().decode()
    lines = re.findall(rf'^(\S*bytes_?out\S*topic="{TOPIC}"\S*) (\S+)$', text, re.MULTILINE | re.IGNORECASE)
    return sum(float(value) for _, value in lines)


def test_a_consumer_reads_in_its_rack(cluster: KlammCluster) -> None:
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    leader = cluster.leader_of(TOPIC)
    near = next(broker for broker in cluster.broker_ids if broker != leader)
    JAVA.run("produce", cluster.bootstrap, TOPIC, "none", "0", "100")
    with member(JAVA, cluster.bootstrap, TOPIC, TOPIC, CLIENT_RACK=f"rack-{near}") as reader:
        reader.wait("the records", lambda: len(reader.seen) == 100)
        assert bytes_out(cluster, near) > 0
        assert bytes_out(cluster, leader) == 0
        cluster.kill(near)
        JAVA.run("produce", cluster.bootstrap, TOPIC, "none", "100", "100")
        reader.wait("the records after the death of its replica", lambda: len(reader.seen) == 200)
        reader.stop()
    assert [record.value for record in reader.seen] == [f"v{number}" for number in range(200)]
