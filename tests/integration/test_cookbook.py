"""The cookbook of docs/testing.md: ten failures that clients meet, as a project that uses klamm would test them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.testing import KlammCluster, ProducerHistory
from klamm.testing.waiting import wait_until

pytestmark = pytest.mark.klamm(
    network=True, properties={"replica.lag.time.max.ms": 1500, "replica.fetch.wait.max.ms": 200}
)

RECORDS = 200


@pytest.fixture
def cluster(klamm_module_cluster: KlammCluster) -> Iterator[KlammCluster]:
    """The cluster of this module, healthy again after each test."""
    yield klamm_module_cluster
    klamm_module_cluster.heal()
    for broker in klamm_module_cluster.alive:
        klamm_module_cluster.resume(broker)
    for broker in klamm_module_cluster.broker_ids:
        if broker not in klamm_module_cluster.alive:
            klamm_module_cluster.start(broker)
    klamm_module_cluster.wait_until_healthy()


def producer(cluster: KlammCluster, **settings: object) -> Producer:
    """The short socket timeout lets it look for another leader while the old one hangs."""
    wanted = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "socket.timeout.ms": 3000, "log_level": 0}
    return Producer({**wanted, **settings})


def send(cluster: KlammCluster, topic: str, history: ProducerHistory, count: int = RECORDS, **settings: object) -> None:
    """Send and wait for every acknowledgement."""
    client = producer(cluster, **settings)
    for number in range(count):
        client.produce(topic, str(number).encode(), on_delivery=history.on_delivery)
    assert client.flush(60) == 0


@contextmanager
def sending(cluster: KlammCluster, topic: str) -> Iterator[ProducerHistory]:
    """An idempotent producer that sends all the time."""
    history, stop = ProducerHistory(), threading.Event()
    client = producer(cluster, **{"enable.idempotence": True, "linger.ms": 2})

    def send_all_the_time() -> None:
        number = 0
        while not stop.wait(0.002):
            client.produce(topic, str(number).encode(), on_delivery=history.on_delivery)
            client.poll(0)
            number += 1

    thread = threading.Thread(target=send_all_the_time)
    thread.start()
    try:
        yield history
    finally:
        stop.set()
        thread.join()
        assert client.flush(60) == 0


def acknowledged_again(history: ProducerHistory) -> None:
    """Wait until more records are acknowledged than now."""
    now = history.count
    wait_until("the next acknowledgement", lambda: history.count > now + 5)


def test_1_a_dead_leader_loses_nothing(cluster: KlammCluster) -> None:
    cluster.create_topic("dead-leader", min_insync_replicas=2)
    with sending(cluster, "dead-leader") as history:
        acknowledged_again(history)
        leader = cluster.leader_of("dead-leader")
        cluster.kill(leader)
        acknowledged_again(history)
        assert cluster.leader_of("dead-leader") != leader
    cluster.assert_nothing_lost(history)
    assert not history.failed


def test_2_a_rolling_restart_fails_no_send(cluster: KlammCluster) -> None:
    cluster.create_topic("rolling", min_insync_replicas=2)
    with sending(cluster, "rolling") as history:
        for broker in cluster.broker_ids:
            cluster.stop(broker)
            acknowledged_again(history)
            cluster.start(broker)
            cluster.wait_until_healthy()
    cluster.assert_nothing_lost(history)
    assert not history.failed


def test_3_too_few_replicas_refuse_instead_of_losing(cluster: KlammCluster) -> None:
    cluster.create_topic("too-few", min_insync_replicas=2)
    leader = cluster.leader_of("too-few")
    for broker in cluster.broker_ids:
        if broker != leader:
            cluster.stop(broker)
    wait_until("a small ISR", lambda: cluster.isr_of("too-few") == [leader])
    history = ProducerHistory()
    send(cluster, "too-few", history, count=1, **{"message.timeout.ms": 1500})
    assert history.count == 0
    assert history.failed == {"_MSG_TIMED_OUT": 1}


def test_4_a_dead_controller_is_replaced(cluster: KlammCluster) -> None:
    cluster.create_topic("controller")
    former = cluster.controller
    cluster.kill(former)
    assert cluster.controller != former
    cluster.create_topic("afterwards", replication_factor=2)
    send(cluster, "afterwards", history := ProducerHistory())
    cluster.assert_nothing_lost(history)


def test_5_an_expired_session_moves_leaders_and_back(cluster: KlammCluster) -> None:
    cluster.create_topic("expired", min_insync_replicas=2)
    with sending(cluster, "expired") as history:
        acknowledged_again(history)
        cluster.expire_session(cluster.leader_of("expired"))
        acknowledged_again(history)
        cluster.wait_until_healthy()
    cluster.assert_nothing_lost(history)


def test_6_a_long_pause_of_the_leader(cluster: KlammCluster) -> None:
    cluster.create_topic("paused", min_insync_replicas=2)
    with sending(cluster, "paused") as history:
        acknowledged_again(history)
        leader = cluster.leader_of("paused")
        cluster.pause(leader)
        wait_until("another leader", lambda: cluster.leader_of("paused") != leader)
        acknowledged_again(history)
        cluster.resume(leader)
        cluster.wait_until_healthy()
    cluster.assert_nothing_lost(history)


def test_7_a_follower_that_the_leader_cannot_reach(cluster: KlammCluster) -> None:
    cluster.create_topic("partitioned", min_insync_replicas=2)
    leader = cluster.leader_of("partitioned")
    follower = next(broker for broker in cluster.alive if broker != leader)
    with sending(cluster, "partitioned") as history:
        cluster.partition(leader, follower)
        wait_until("a smaller ISR", lambda: follower not in cluster.isr_of("partitioned"))
        acknowledged_again(history)
        cluster.heal()
        cluster.wait_until_healthy()
    assert cluster.isr_of("partitioned") == [1, 2, 3]
    cluster.assert_nothing_lost(history)


def test_8_a_leader_without_zookeeper_acknowledges_nothing_that_is_lost(cluster: KlammCluster) -> None:
    cluster.create_topic("no-zookeeper", min_insync_replicas=2)
    leader = cluster.leader_of("no-zookeeper")
    with sending(cluster, "no-zookeeper") as history:
        acknowledged_again(history)
        cluster.partition(leader, "zookeeper")
        wait_until("another leader", lambda: cluster.leader_of("no-zookeeper") != leader)
        cluster.heal()
        acknowledged_again(history)
        cluster.wait_until_healthy()
    cluster.assert_nothing_lost(history)


def test_9_a_slow_leader_delays_but_delivers(cluster: KlammCluster) -> None:
    cluster.create_topic("slow")
    cluster.slow(cluster.leader_of("slow"), 100)
    began = time.monotonic()
    send(cluster, "slow", history := ProducerHistory(), count=1)
    assert time.monotonic() - began > 0.2, "there and back"
    cluster.assert_nothing_lost(history)


def test_10_all_brokers_at_once(cluster: KlammCluster) -> None:
    cluster.create_topic("blackout")
    send(cluster, "blackout", history := ProducerHistory())
    for broker in cluster.broker_ids:
        cluster.kill(broker)
    for broker in cluster.broker_ids:
        cluster.start(broker)
    cluster.wait_until_healthy()
    cluster.assert_nothing_lost(history)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("blackout", 0, 0)])
    values = [message.value() for message in consumer.consume(RECORDS, timeout=30)]
    consumer.close()
    assert values == [str(number).encode() for number in range(RECORDS)]
