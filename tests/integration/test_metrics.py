"""/metrics of real brokers: Prometheus can read it, and every broker has every metric of the controller, zero on
brokers that are not the controller."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from klamm.model.errors import ConfigError
from klamm.server.http import HttpListener
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until

CONTROLLER_GAUGES = (
    "kafkacontroller_activecontrollercount",
    "kafkacontroller_offlinepartitionscount",
    "kafkacontroller_preferredreplicaimbalancecount",
    "kafkacontroller_controllerstate",
    "kafkacontroller_globaltopiccount",
    "kafkacontroller_globalpartitioncount",
    "kafkacontroller_topicstodeletecount",
    "kafkacontroller_replicastodeletecount",
    "kafkacontroller_topicsineligibletodeletecount",
    "kafkacontroller_replicasineligibletodeletecount",
    "controllereventmanager_eventqueuesize",
    "controllerchannelmanager_totalqueuesize",
)
CONTROLLER_TIMERS = (
    "controllerchange",
    "leaderelection",
    "topicchange",
    "topicdeletion",
    "partitionreassignment",
    "autoleaderbalance",
    "manualleaderbalance",
    "controlledshutdown",
    "isrchange",
    "leaderandisrresponsereceived",
    "logdirchange",
    "controllershutdown",
    "uncleanleaderelectionenable",
    "topicuncleanleaderelectionenable",
    "listpartitionreassignment",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("metrics"), brokers=2, http=True) as started:
        started.create_topic("measured", partitions=6, replication_factor=2)
        started.wait_until_healthy()
        yield started


def scrape(url: str) -> dict[str, float]:
    """Samples without labels by name, read by Prometheus' own parser."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert len({family.name for family in families}) == len(families), "a family is announced once"
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def all_samples(url: str) -> list[Sample]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return [sample for family in families for sample in family.samples]


def test_every_controller_metric_is_there_and_zero_where_nobody_leads(cluster: KlammCluster) -> None:
    leading = cluster.controller
    following = next(broker for broker in cluster.broker_ids if broker != leading)
    for broker in (leading, following):
        samples = scrape(cluster.metrics_url(broker))
        for name in CONTROLLER_GAUGES:
            assert f"kafka_controller_{name}" in samples
        for name in CONTROLLER_TIMERS:
            assert f"kafka_controller_controllerstats_{name}rateandtimems_count" in samples
        assert "kafka_controller_controllerstats_uncleanleaderelections_total" in samples
        assert "kafka_controller_controllereventmanager_eventqueuetimems_count" in samples
        if broker == following:
            assert {name: samples[f"kafka_controller_{name}"] for name in CONTROLLER_GAUGES} == dict.fromkeys(
                CONTROLLER_GAUGES, 0.0
            )
        else:
            assert samples["kafka_controller_kafkacontroller_activecontrollercount"] == 1
            assert samples["kafka_controller_kafkacontroller_globaltopiccount"] == 1
            assert samples["kafka_controller_kafkacontroller_globalpartitioncount"] == 6


def test_brokers_tell_of_their_replicas_and_of_the_process(cluster: KlammCluster) -> None:
    of_brokers = [scrape(cluster.metrics_url(broker)) for broker in cluster.broker_ids]
    assert sum(samples["kafka_server_replicamanager_leadercount"] for samples in of_brokers) == 6
    for samples in of_brokers:
        assert samples["kafka_server_replicamanager_partitioncount"] == 6
        assert samples["kafka_server_kafkaserver_brokerstate"] == 3
        assert samples["kafka_server_replicamanager_underreplicatedpartitions"] == 0
        assert samples["kafka_server_replicamanager_reassigningpartitions"] == 0
        assert samples["kafka_server_replicamanager_offlinereplicacount"] == 0
        assert samples["kafka_server_sessionexpirelistener_zookeeperexpires_total"] == 0
        assert samples["process_resident_memory_bytes"] > 10e6
        assert samples["klamm_process_taskcount"] > 5


def test_a_stopped_follower_is_seen_in_the_gauges(cluster: KlammCluster) -> None:
    """Kept up to date with each change of role and ISR, instead of a scan of all partitions per scrape."""
    victim, other = (broker for broker in sorted(cluster.broker_ids, key=lambda b: b == cluster.controller))
    cluster.stop(victim)

    def wait_for(**wanted: float) -> None:
        """The gauges lag behind ZooKeeper: a leader learns there that it may change the ISR."""

        def found() -> dict[str, float]:
            samples = scrape(cluster.metrics_url(other))
            return {name: samples[f"kafka_server_replicamanager_{name}"] for name in wanted}

        wait_until(lambda: f"{wanted} instead of {found()}", lambda: found() == wanted)

    wait_for(leadercount=6.0, underreplicatedpartitions=6.0, atminisrpartitioncount=6.0)
    cluster.start(victim)
    cluster.wait_until_healthy()
    wait_for(underreplicatedpartitions=0.0)


def test_records_are_counted_in_total_and_by_topic(cluster: KlammCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(30):
        producer.produce("measured", b"value", partition=number % 6)
    assert producer.flush(30) == 0

    def counted() -> tuple[float, float, float]:
        """Records in total, records of the topic, and the ends of its logs."""
        totals, topics, ends = 0.0, 0.0, 0.0
        for broker in cluster.broker_ids:
            totals += scrape(cluster.metrics_url(broker))["kafka_server_brokertopicmetrics_messagesin_total"]
            for sample in all_samples(cluster.metrics_url(broker)):
                if sample.labels.get("topic") == "measured":
                    topics += sample.value if sample.name.endswith("_messagesin_total") else 0
                    ends += sample.value if sample.name == "kafka_log_log_logendoffset" else 0
        return totals, topics, ends

    # Each partition has two replicas, and a follower may be a moment behind.
    wait_until(lambda: f"30 records, 60 with replicas, instead of {counted()}", lambda: counted() == (30, 30, 60))


def test_where_the_time_of_requests_goes(cluster: KlammCluster) -> None:
    """A consumer that waits for records waits remotely; every part is there for every API."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "waits", "fetch.wait.max.ms": "300"})
    consumer.assign([TopicPartition("measured", number, OFFSET_END) for number in range(6)])
    names = ("requestqueuetimems", "localtimems", "remotetimems", "responsesendtimems", "totaltimems")

    def median_wait() -> float:
        """The median at the broker whose fetches waited longest."""
        assert consumer.poll(0.5) is None
        waits = [
            sample.value
            for broker in cluster.broker_ids
            for sample in all_samples(cluster.metrics_url(broker))
            if sample.name == "kafka_network_requestmetrics_remotetimems"
            and (sample.labels.get("request"), sample.labels.get("quantile")) == ("Fetch", "0.5")
        ]
        return max(waits)

    wait_until("half of the fetches to have waited long for records", lambda: median_wait() > 50)
    consumer.close()
    for broker in cluster.broker_ids:
        sums = {
            name: sample.value
            for sample in all_samples(cluster.metrics_url(broker))
            for name in names
            if sample.name == f"kafka_network_requestmetrics_{name}_sum" and sample.labels.get("request") == "Fetch"
        }
        assert sums.keys() == {*names}
        assert all(0 < value != int(value) for value in sums.values()), "in less than milliseconds"
        assert sums["totaltimems"] == pytest.approx(sum(sums[name] for name in names[:-1]))
        assert sums["remotetimems"] > sums["localtimems"]


def test_idle_lag_flushes_and_totals(cluster: KlammCluster) -> None:
    for broker in cluster.broker_ids:
        samples = scrape(cluster.metrics_url(broker))
        assert 0 < samples["kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent"] <= 1
        assert 0 < samples["kafka_network_socketserver_networkprocessoravgidlepercent"] <= 1
        assert samples["kafka_log_logflushstats_logflushrateandtimems_count"] >= 0
        assert samples["kafka_server_brokertopicmetrics_totalfetchrequests_total"] > 0


def test_health_and_readiness(cluster: KlammCluster) -> None:
    base = cluster.metrics_url(1).removesuffix("/metrics")
    for path in ("/healthz", "/readyz"):
        with urllib.request.urlopen(f"{base}{path}", timeout=30) as answer:
            assert answer.read() == b"ok\n"


def test_nothing_else_is_served(cluster: KlammCluster) -> None:
    base = cluster.metrics_url(1).removesuffix("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{base}/etc/passwd", timeout=30)
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(urllib.request.Request(f"{base}/metrics", data=b"x", method="POST"), timeout=30)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            HttpListener("127.0.0.1", port, MetricsRegistry(), lambda: "")
    assert str(refused.value) == f"klamm.http.listener: cannot listen on 127.0.0.1:{port}: {os.strerror(98)}"
