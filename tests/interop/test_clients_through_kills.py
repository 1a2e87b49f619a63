"""Every client of the matrix writes and reads through `kill -9` of its leaders and of its group's coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from klamm.testing.cluster import KlammCluster, running_cluster

from .matrix import CLIENTS, PARTITIONS, Client, Member, member

AT_ONCE = 4
COUNT = 20
PROPERTIES = {"offsets.topic.num.partitions": 12, "min.insync.replicas": 2}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    with running_cluster(tmp_path_factory.mktemp("kills"), properties=PROPERTIES) as running:
        yield running


def topic_of(client: Client) -> str:
    return client.name.replace(" ", "-")


def test_nothing_is_lost(cluster: KlammCluster, scaled: Callable[[int, int], int]) -> None:
    """Each broker leads a third of everything, so its death concerns every client; the full count kills all three."""

    def write(client: Client, first: int) -> None:
        client.run("produce", cluster.bootstrap, topic_of(client), "none", str(first), str(COUNT))

    def write_and_read(pool: ThreadPoolExecutor, members: list[Member], first: int) -> None:
        for written in [pool.submit(write, client, first) for client in CLIENTS]:
            written.result()
        expected = {f"v{number}" for number in range(first + COUNT)}
        for one in members:
            one.wait(f"{first + COUNT} records", lambda: {record.value for record in one.seen} == expected)  # noqa: B023

    with ExitStack() as stack:
        members = []
        for client in CLIENTS:
            cluster.create_topic(topic_of(client), PARTITIONS)
            name = topic_of(client)
            members.append(stack.enter_context(member(client, cluster.bootstrap, name, name)))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        write_and_read(pool, members, 0)
        for number in range(1, scaled(1, 3) + 1):
            broker = cluster.broker_ids[number - 1]
            cluster.kill(broker)
            write_and_read(pool, members, number * COUNT)
            cluster.start(broker)
            cluster.wait_until_healthy()
        for one in members:
            one.stop()
    for one in members:
        assert committed_in_order(one), f"{one.client.name} went back"


def committed_in_order(reader: Member) -> bool:
    """A record may come again after a fail-over, but only what was not yet committed: at most the last batch."""
    highest: dict[int, int] = {}
    for record in reader.seen:
        if record.offset < highest.get(record.partition, 0) - COUNT:
            return False
        highest[record.partition] = max(highest.get(record.partition, 0), record.offset)
    return True
