"""The dashboard in a real browser, over a cluster that the tests change: every page shows exactly that, without reload.

The tests share a cluster and run in order: the last ones break it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from klamm.client.admin import BROKER, DELETE, SET
from klamm.client.groups import GroupAdmin
from klamm.client.producer import Producer
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.partition import Assignment
from klamm.server.inspection import zookeeper
from klamm.testing.cluster import KlammCluster, running_cluster
from klamm.testing.waiting import wait_until
from klamm.wire.records import Record
from klamm.zookeeper.znodes import delete_topics
from klamm.zookeeper.znodes import topic as topic_znode

from .browsing import CHROMIUM, Operator, Visitor, chromium, running_dashboard, visiting

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="scripts/install_chromium has not installed Chromium")
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@pytest.fixture(scope="module")
def cluster() -> Iterator[KlammCluster]:
    with running_cluster(properties={"klamm.controller.settle.ms": "500"}) as running:
        yield running


@pytest.fixture(scope="module")
def operator(cluster: KlammCluster) -> Iterator[Operator]:
    found = Operator(cluster.bootstrap)
    yield found
    found.close()


@pytest.fixture(scope="module")
def visitor(cluster: KlammCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    output = tmp_path_factory.mktemp("dashboard") / "output.txt"
    at = ("--bootstrap-server", cluster.bootstrap, "--zookeeper", cluster.zookeeper)
    events = ("--events", str(cluster.directory(1).parents[1]))
    with running_dashboard(output, *at, *events) as url, chromium() as browser, visiting(browser, url) as found:
        yield found


def produce(operator: Operator, topic: str, records: dict[int, list[Record]]) -> None:
    operator.do(lambda client: Producer(client.cluster).send(topic, records))


def test_a_topic_is_created_and_seen(visitor: Visitor, cluster: KlammCluster) -> None:
    page = visitor.open("/topics")
    page.fill("#create input[name=name]", "orders")
    page.fill("#create input[name=partitions]", "6")
    page.click("#create button")
    visitor.sees("#notice", "topic orders was created with 6 partitions")
    visitor.sees("#topics", "orders")
    wait_until("leaders", lambda: visitor.row("#topics", "orders")[1:6] == ["in sync", "6", "3", "0", "0"])
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q", "the search has a key"
    page.keyboard.type("nothing-like-this")
    page.keyboard.press("Enter")
    visitor.sees("#topics", "No topic matches.")

    visitor.open("/topics/orders")
    leaders = [int(visitor.row("#rows", str(number))[2]) for number in range(6)]
    assert leaders == [cluster.leader_of("orders", number) for number in range(6)]
    visitor.sees("#changes", "topic creation")
    page.fill("#grow input[name=partitions]", "7")
    page.click("#grow button")
    visitor.sees("#notice", "topic orders has 7 partitions now")
    wait_until("the seventh", lambda: cluster.leader_of("orders", 6) > 0)
    visitor.open("/")
    visitor.sees("#sentence", "Healthy: 3 brokers, 7 partitions, all in sync.")
    assert page.locator("#heat svg rect").count() == 7


def test_bytes_and_brokers(visitor: Visitor, cluster: KlammCluster, operator: Operator) -> None:
    visitor.open("/brokers/1")
    leads = sum(cluster.leader_of("orders", number) == 1 for number in range(7))
    visitor.sees("#facts", f"{leads} of 7 replicas, 0 not in sync")
    visitor.mark()
    produce(operator, "orders", {0: [Record(b"k", b"x" * 100_000)] * 5})
    visitor.sees("#facts", "kB")
    visitor.open("/topics/orders")
    assert [visitor.row("#rows", str(number))[6] for number in (0, 1)] == ["5", "0"], "records"
    visitor.sees("#facts", "Records\n5")
    visitor.open("/brokers")
    assert [visitor.row("#brokers", str(b))[1].split()[0] for b in (1, 2, 3)] == ["up"] * 3
    assert visitor.row("#brokers", str(cluster.controller))[1] == "up controller"
    for broker in (1, 2, 3):
        wait_until(
            f"the bytes of broker {broker}",
            lambda broker=broker: visitor.row("#brokers", str(broker))[8].startswith("50"),
        )


def test_messages(visitor: Visitor, operator: Operator) -> None:
    visitor.page.goto(visitor.url + "/topics")
    operator.do(lambda client: client.admin.create_topics({"mail": _topic(3)}))
    wait_until("the topic", lambda: "mail" in _text(visitor, "/topics", "#topics"))
    early = datetime(2020, 1, 1, tzinfo=UTC)
    records = [
        Record(b"first", b'{"id": 1, "to": "x"}', int(early.timestamp() * 1000)),
        Record(b"second", HOSTILE.encode(), int(early.timestamp() * 1000) + 3_600_000),
        Record(b"\xff\x00", b"\xff\xfe\x01", int(early.timestamp() * 1000) + 7_200_000, (("trace", b"abc"),)),
        Record(b"first", None, int(early.timestamp() * 1000) + 10_800_000),
    ]
    produce(operator, "mail", {1: records})
    visitor.open("/messages?topic=mail")
    visitor.sees("#range", "Partition 1 has offsets 0 to 4.")
    assert visitor.page.inner_text("#partitions").split() == ["0", "0", "1", "4", "2", "0"], "with their records"
    at = "/messages?topic=mail&partition=1"
    visitor.open(at)
    assert visitor.row("#records", "0")[1:] == ["2020-01-01 00:00:00", "first", '{"id": 1, "to": "x"}']
    assert visitor.row("#records", "1")[3] == HOSTILE, "as text, and nothing of it ran"
    assert visitor.row("#records", "2")[2:] == ["ff 00 not UTF-8", "ff fe 01 not UTF-8 trace abc"]
    assert visitor.row("#records", "3")[3] == "null (a tombstone)"
    visitor.open(f"{at}&as=json")
    assert visitor.row("#records", "0")[3] == '{ "id": 1, "to": "x" }'
    visitor.open(f"{at}&as=hex")
    assert visitor.row("#records", "0")[2] == "66 69 72 73 74"
    visitor.open(f"{at}&from=offset&offset=2")
    assert visitor.page.locator("#records tbody tr").count() == 2
    visitor.open(f"{at}&from=time&time=2020-01-01T01:30")
    assert visitor.page.locator("#records tbody tr td:first-child").all_inner_texts() == ["2", "3"]
    visitor.open(f"{at}&key=first")
    visitor.sees("#range", "2 records with this key among 4 read from 0 on")
    assert visitor.page.locator("#records tbody tr td:first-child").all_inner_texts() == ["0", "3"]


def test_a_group_with_its_lag_and_a_reset(visitor: Visitor, operator: Operator) -> None:
    place = TopicPartition("mail", 1)
    operator.do(lambda client: GroupAdmin(client.cluster).commit("billing/eu", {place: 1}))
    visitor.open("/groups")
    assert visitor.row("#groups", "billing/eu")[1:3] == ["Empty", "3"], "its lag"
    visitor.page.click("#groups a")
    visitor.sees("#lag", "3")
    assert visitor.row("#lags", "mail-1")[1:4] == ["1", "4", "3"]
    visitor.mark()
    produce(operator, "mail", {1: [Record(b"k", b"v")] * 7})
    visitor.sees("#lag", "10")
    assert visitor.is_marked, "the page was not loaded again"
    page = visitor.page
    page.select_option("#plan select[name=to]", "latest")
    page.click("#plan button")
    visitor.sees("#planned", "10 records would never be read, 0 would be read again.")
    assert visitor.row("#planned", "mail-1")[1:3] == ["1", "11"]
    assert operator.do(lambda client: GroupAdmin(client.cluster).offsets("billing/eu")) == {place: 1}, "only planned"
    page.click("#reset button")
    visitor.sees("#notice", "the offsets of 1 partition were set")
    assert operator.do(lambda client: GroupAdmin(client.cluster).offsets("billing/eu")) == {place: 11}
    assert visitor.row("#lags", "mail-1")[1:4] == ["11", "11", "0"]


def test_settings_in_which_brokers_differ(visitor: Visitor, operator: Operator) -> None:
    visitor.open("/configuration")
    visitor.sees("#differences", "All brokers have the same settings")
    key = "message.max.bytes"
    operator.do(lambda client: client.admin.alter_configs(BROKER, "2", {key: (SET, "2345678")}))
    wait_until("the change", lambda: "2345678" in _text(visitor, "/configuration", "#differences"))
    assert visitor.row("#differences", key)[2] == "2345678"
    operator.do(lambda client: client.admin.alter_configs(BROKER, "2", {key: (DELETE, None)}))
    visitor.open("/configuration?broker=1&q=broker.id")
    assert visitor.row("#settings", "broker.id") == ["broker.id", "1", "", "server.properties"]
    visitor.open("/configuration?topic=mail&q=min.insync")
    assert visitor.row("#settings", "min.insync.replicas") == ["min.insync.replicas", "1", "", "default"]


def test_a_candidate_is_added_and_the_controller_moves(visitor: Visitor, cluster: KlammCluster) -> None:
    first = cluster.controller
    second, third = (broker for broker in cluster.broker_ids if broker != first)
    page = visitor.open("/controller")
    visitor.sees("#holder", f"Broker {first} is the controller.")
    page.select_option("#add-candidate select", str(second))
    page.click("#add-candidate button")
    visitor.sees("#notice", f"broker {second} is now a candidate")
    visitor.mark()
    visitor.sees("#holder", f"Broker {second} is the controller.")
    assert visitor.is_marked, "seen without a reload"
    wait_until("the news", lambda: cluster.controller == second)
    visitor.sees("#terms", f"a candidate replaces broker {first}, which is not one")
    visitor.picture("controller")
    page.click(f"button[aria-label='Remove candidate {second}']")
    visitor.sees("#notice", f"broker {second} is no longer a candidate")
    page.select_option("#move select", str(third))
    page.click("#move button")
    visitor.sees("#notice", f"the controller moved to broker {third}")
    visitor.sees("#holder", f"Broker {third} is the controller.")
    wait_until("the news of it", lambda: cluster.controller == third)


def test_a_plan_is_made_started_watched_and_cancelled(
    visitor: Visitor, cluster: KlammCluster, operator: Operator
) -> None:
    operator.do(lambda client: client.admin.create_topics({"ballast": _topic(2, replicas=[1, 2])}))
    for _ in range(20):  # a throttled follower still gets a megabyte at once, then waits: many show a rate
        produce(operator, "ballast", {number: [Record(None, b"x" * 50_000)] * 10 for number in (0, 1)})
    page = visitor.open("/reassignments")
    visitor.sees("#moves", "No partition is being moved.")
    page.fill("#make input[name=drain]", "2")
    page.fill("#make input[name=replication_factor]", "2")
    page.click("#make button")
    visitor.sees("#notice", "nothing is moved yet")
    drained = visitor.row("#diff", "2")
    assert drained[5] == "0" and drained[7] == "0", "broker 2 keeps no replica and no leader"
    page.fill("#start input[name=rate]", "300000")
    page.click("#start button")
    visitor.sees("#notice", "started")
    visitor.mark()
    visitor.sees("#moves", "on the move")
    visitor.sees("#throttles", "broker 1 to 300.0 kB/s")
    visitor.sees("#progress", "left")
    visitor.picture("reassignments")
    assert visitor.is_marked
    page.click("#cancel button")
    visitor.sees("#notice", "cancelled")
    visitor.sees("#moves", "No partition is being moved.")
    page.wait_for_function("() => document.querySelector('#throttles') === null")
    assert operator.do(lambda client: client.admin.reassignments()) == {}
    assert 2 in {broker for entry in cluster.partitions("ballast") for broker in entry.replica_nodes}


def test_a_leader_is_killed_and_the_sentence_changes(visitor: Visitor, cluster: KlammCluster) -> None:
    visitor.open("/")
    visitor.sees("#sentence", "Healthy: 3 brokers")
    visitor.mark()
    leader = cluster.leader_of("orders", 0)
    cluster.kill(leader)
    visitor.sees("#sentence", f"roker {leader} is")
    visitor.sees("#sentence", f"roker {leader} is down")
    visitor.sees(".problems", f"start broker {leader}")
    visitor.picture("overview")
    visitor.picture("overview-dark", scheme="dark")
    visitor.picture("overview-phone", width=390)
    successor = cluster.leader_of("orders", 0)
    cluster.start(leader)
    visitor.sees("#sentence", "Healthy: 3 brokers")
    assert visitor.is_marked, "all of this was seen without a reload"
    visitor.open(f"/timeline?topic=orders&broker={leader}&each=1")
    visitor.sees("#changes", f"orders-0: broker {successor} leads, in sync ")
    visitor.open("/topics")
    visitor.page.click("#elect button")
    visitor.sees("#notice", "elected")
    visitor.page.wait_for_function("() => document.querySelector('#elect') === null")
    assert all(entry.leader_id == entry.replica_nodes[0] for entry in cluster.partitions("orders"))
    visitor.open("/timeline")
    visitor.sees("#changes", f"broker {leader} suspected")
    visitor.picture("timeline")
    visitor.open(f"/timeline?kind=broker&broker={leader}")
    visitor.sees("#changes", f"broker {leader} is gone")


def test_a_deletion_with_its_reason_and_the_doctor(visitor: Visitor, cluster: KlammCluster, operator: Operator) -> None:
    visitor.open("/deletions")
    visitor.sees("#deletions", "No topic is marked for deletion.")
    visitor.mark()
    operator.run(lambda: asyncio.run(mark_what_is_partly_elsewhere(cluster.zookeeper, "stuck", [1, 99])))
    visitor.sees("#deletions", "stuck")
    assert visitor.is_marked
    assert visitor.row("#deletions", "stuck")[3] == "replicas on brokers [99], which are not registered"
    visitor.open("/doctor")
    visitor.sees("#findings", "broker 99 is not registered, has 1 replica and leads 0")
    visitor.open("/doctor?acls=1")
    visitor.sees("#findings", "broker 99 is not registered")
    visitor.open("/")
    visitor.sees(".problems", "roker 99 is down")


def _topic(partitions: int, replicas: list[int] | None = None) -> object:
    from klamm.client.admin import NewTopic

    if replicas is None:
        return NewTopic(partitions, 3, configs={"retention.ms": "-1"})  # some records are old on purpose
    return NewTopic(assignments=dict.fromkeys(range(partitions), replicas))


def _text(visitor: Visitor, path: str, selector: str) -> str:
    visitor.open(path)
    return visitor.page.inner_text(selector)


async def mark_what_is_partly_elsewhere(connect: str, name: str, replicas: list[int]) -> None:
    """Mark a topic for deletion that has a replica on an unknown broker."""
    async with zookeeper(connect) as zk:
        await zk.create(topic_znode.path(name), topic_znode.encode({0: Assignment(tuple(map(BrokerId, replicas)))}))
        await zk.create(delete_topics.path(name))
