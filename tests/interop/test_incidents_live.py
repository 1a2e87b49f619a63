"""klamm incidents report against a prober: brokers and controllers are killed, stopped and paused while it writes.

The logs of the cluster alone must tell what the prober felt: every gap of more than a second is an outage of that
partition in the report, and nine in ten begin and end within a second of it. All faults take minutes on a machine of
its own, so they are for `make soak`: a busy machine stalls brokers in ways that no log can tell. Two kills run always.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import async_playwright
from tests.integration.browsing import CHROMIUM, FLAGS, IMAGES, SCREENSHOTS, WAIT_MS
from tests.interop.prober import Gap, Prober

from klamm.client.addresses import addresses
from klamm.client.admin import Admin, NewTopic
from klamm.client.cluster import ClusterClient
from klamm.model.ids import TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.pipelines.incidents.reading import join
from klamm.pipelines.incidents.report import PAGE, Options, Report, make_report, write_report
from klamm.pipelines.incidents.sources import find_logs
from klamm.pipelines.incidents.spark_engine import read_in_session
from klamm.pipelines.incidents.tables import clock
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster
from klamm.testing.waiting import eventually
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper
from klamm.zookeeper.znodes import partition_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL_SCALE = os.environ.get("KLAMM_SCALE") == "full"
TOPICS: dict[str, dict[int, tuple[int, ...]]] = {
    "triples": {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)},
    "pairs": {0: (1, 2), 1: (2, 3), 2: (3, 1)},
    "alone": {0: (1,), 1: (2,), 2: (3,)},
}
MIN_ISR = {"triples": 2, "pairs": 2, "alone": 1}
"""A pair cannot lose a replica without an outage, and one that is alone waits for its only replica."""
PLACES = {TopicPartition(topic, number): replicas for topic, of in TOPICS.items() for number, replicas in of.items()}
SESSION_SECONDS = 4
PROPERTIES = {
    "zookeeper.session.timeout.ms": SESSION_SECONDS * 1000,
    "replica.lag.time.max.ms": 3000,
    "min.insync.replicas": 2,
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": 500,
    # Kafka's followers that ask a new leader too early wait this long, a second by default, and no log says so.
    "replica.fetch.backoff.ms": 200,
}
GAP_SECONDS = 1.0
CLOSE_MS = 1000
CALM_MS = 2000
"""Between two faults, so that the gaps of the prober and the outages of the report are two as well."""
PREFERRED = 0
OWN = ("file:", "data:", "blob:")
"""Addresses of the page itself."""


class Probed:
    """A cluster under the prober, its state in ZooKeeper, and the faults."""

    def __init__(self, cluster: MixedCluster, zk: ZooKeeperClient, prober: Prober, admin: Admin) -> None:
        self.cluster = cluster
        self.zk = zk
        self.prober = prober
        self.admin = admin

    async def controller(self) -> int:
        async def known() -> int | None:
            (node,) = await self.zk.get_many(["/controller"])
            return int(json.loads(node.data)["brokerid"]) if node is not None and node.data else None

        return await eventually("a controller", known)

    async def other_than_controller(self) -> int:
        controller = await self.controller()
        return next(broker for broker in self.cluster.alive if broker != controller)

    async def healed(self) -> None:
        """All replicas are in sync, every broker leads its own partitions again, and the prober can write to all."""

        async def in_sync() -> bool:
            nodes = await self.zk.get_many([partition_state.path(place) for place in PLACES])
            states = [json.loads(node.data) if node and node.data else {} for node in nodes]
            return all(
                sorted(state.get("isr", ())) == sorted(replicas) and state["leader"] in replicas
                for state, replicas in zip(states, PLACES.values(), strict=True)
            )

        await eventually("all replicas in sync", in_sync)
        await self.admin.elect_leaders(PREFERRED, PLACES)

        async def calm() -> bool:
            return self.prober.calm(CALM_MS)

        await eventually("a prober that can write to all partitions", calm)

    async def lost(self, broker: int) -> None:
        """Wait until ZooKeeper has forgotten the broker."""

        async def forgotten() -> bool:
            return await self.zk.get_many([f"/brokers/ids/{broker}"]) == [None]

        await eventually(f"the end of broker {broker}'s session", forgotten)


Fault = Callable[[Probed], Awaitable[None]]


async def kill_the_controller(probed: Probed) -> None:
    broker = await probed.controller()
    await probed.cluster[broker].kill()
    await probed.lost(broker)
    await probed.cluster[broker].start()


async def kill_another(probed: Probed) -> None:
    broker = await probed.other_than_controller()
    await probed.cluster[broker].kill()
    await probed.lost(broker)
    await probed.cluster[broker].start()


async def kill_two_of_three(probed: Probed) -> None:
    controller = await probed.controller()
    others = [broker for broker in probed.cluster.alive if broker != controller]
    for broker in others:
        await probed.cluster[broker].kill()
    for broker in others:
        await probed.lost(broker)
        await probed.cluster[broker].start()


async def restart_at_once_after_a_kill(probed: Probed) -> None:
    broker = await probed.other_than_controller()
    await probed.cluster[broker].kill()
    await probed.cluster[broker].start()


async def stop_the_controller(probed: Probed) -> None:
    broker = await probed.controller()
    await probed.cluster[broker].stop()
    await probed.cluster[broker].start()


async def stop_another(probed: Probed) -> None:
    broker = await probed.other_than_controller()
    await probed.cluster[broker].stop()
    await probed.cluster[broker].start()


async def _pause(probed: Probed, broker: int, seconds: float) -> None:
    process = probed.cluster[broker]
    process.pause()
    await asyncio.sleep(seconds)  # the length of the fault
    process.resume()


async def pause_another_beyond_its_session(probed: Probed) -> None:
    await _pause(probed, await probed.other_than_controller(), SESSION_SECONDS + 3)


async def pause_the_controller_beyond_its_session(probed: Probed) -> None:
    await _pause(probed, await probed.controller(), SESSION_SECONDS + 3)


async def pause_another_within_its_session(probed: Probed) -> None:
    """Kafka complains after two thirds of its session without an answer; shorter pauses leave no trace."""
    await _pause(probed, await probed.other_than_controller(), SESSION_SECONDS * 0.7)


ALL_FAULTS: Sequence[Fault] = (
    kill_the_controller,
    stop_another,
    pause_another_beyond_its_session,
    kill_another,
    pause_the_controller_beyond_its_session,
    stop_the_controller,
    kill_two_of_three,
    pause_another_within_its_session,
)
FEW_FAULTS: Sequence[Fault] = (kill_the_controller, kill_another)
FAULTS: dict[str, Sequence[Fault]] = {
    "klamm": (*ALL_FAULTS, restart_at_once_after_a_kill),  # Kafka's brokers cannot register before the session ends
    "2.5.1": ALL_FAULTS,
    "3.9.1": ALL_FAULTS,
}


def broker_of(kind: str, number: int, zookeeper: str, directory: Path) -> BrokerProcess:
    if kind == "klamm":
        return KlammBroker(number, zookeeper, directory, PROPERTIES)
    protocol = ".".join(kind.split(".")[:2])
    return ApacheKafkaBroker(kind, number, zookeeper, directory, inter_broker_protocol=protocol, properties=PROPERTIES)


async def live_through(kind: str, faults: Sequence[Fault], zookeeper: str, directory: Path) -> list[Gap]:
    """The gaps that the prober found while these things happened. The logs stay in the directory.

    Skips if another load on the machine held up the brokers in most of them.
    """
    brokers = [broker_of(kind, number, zookeeper, directory / str(number)) for number in (1, 2, 3)]
    zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(1), zookeeper, 30_000)
    async with MixedCluster(brokers).running() as cluster, zk.running():
        client = ClusterClient(addresses(cluster.bootstrap), client_id="test")
        async with client.running():
            admin = Admin(client)
            wanted = {
                topic: NewTopic(assignments=placed, configs={"min.insync.replicas": str(MIN_ISR[topic])})
                for topic, placed in TOPICS.items()
            }
            assert await admin.create_topics(wanted) == dict.fromkeys(TOPICS)
            prober = Prober(
                addresses(cluster.bootstrap), list(PLACES), lambda: [cluster[broker].pid for broker in cluster.alive]
            )
            async with prober.running():
                probed = Probed(cluster, zk, prober, admin)
                await probed.healed()
                for fault in faults:
                    await fault(probed)
                    await probed.healed()
    gaps = prober.gaps(GAP_SECONDS)
    judged = [gap for gap in gaps if not prober.was_held_up(gap)]
    assert len(gaps) >= 2 * len(faults), "the faults were not felt, so this proves nothing"
    if len(judged) < 2 * len(faults):
        pytest.skip(f"the machine is too busy: {len(judged)} of {len(gaps)} gaps can be judged")
    return judged


def problems(report: Report, gaps: Sequence[Gap]) -> tuple[list[str], list[str]]:
    """The gaps that no outage of the report names, and those whose outage begins or ends more than a second off."""
    unnamed, inexact = [], []
    for gap in gaps:
        named = [
            outage
            for outage in report.findings.outages
            if outage.place[:2] == gap.place and outage.start < gap.end and outage.end > gap.start
        ]
        told = f"{gap.place}: {gap.seconds:.2f} s from {clock(gap.start)} to {clock(gap.end)}"
        if not named:
            unnamed.append(told)
            continue
        early, late = min(o.start for o in named) - gap.start, max(o.end for o in named) - gap.end
        if max(abs(early), abs(late)) > CLOSE_MS:
            inexact.append(f"{told}: the report begins {early:+} ms and ends {late:+} ms off, {named[0].how}")
    return unnamed, inexact


async def opened_in_a_browser(page_file: Path, picture: Path) -> list[str]:
    """What the page complains about, and what it asks others for."""
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            page = await browser.new_page(viewport={"width": 1300, "height": 1400})
            page.set_default_timeout(WAIT_MS)
            page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda asked: None if asked.url.startswith(OWN) else wrong.append(asked.url))
            await page.goto(page_file.as_uri())
            await page.wait_for_selector("body[data-drawn=yes]")
            if os.environ.get(SCREENSHOTS):
                await page.screenshot(path=picture)
        finally:
            await browser.close()
    return wrong


# PySpark leaves the closing of its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_the_gaps_of_two_kills_are_named_and_both_engines_read_the_same(
    lake_spark: SparkSession, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    gaps = await live_through("klamm", FEW_FAULTS, zookeeper.connect_string, tmp_path / "logs")
    report = make_report(Options([tmp_path / "logs"], tmp_path / "report", "local"))
    unnamed, inexact = problems(report, gaps)
    assert unnamed == [], inexact
    assert len(inexact) <= len(gaps) // 10, inexact
    files = find_logs([tmp_path / "logs"])
    assert join(files, read_in_session(lake_spark, files)) == report.logs


@pytest.mark.skipif(not FULL_SCALE, reason="faults for minutes on a machine of its own: make soak")
@pytest.mark.timeout(1800)
# PySpark leaves the closing of its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["klamm", "2.5.1", "3.9.1"])
async def test_the_report_names_every_gap_that_a_prober_felt(
    kind: str, zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    gaps = await live_through(kind, FAULTS[kind], zookeeper.connect_string, tmp_path / "logs")
    report = make_report(Options([tmp_path / "logs"], tmp_path / "report", "local"))
    unnamed, inexact = problems(report, gaps)
    print(f"{kind}: {len(gaps)} gaps, {len(unnamed)} not named, {len(inexact)} not within a second")
    assert unnamed == [], inexact
    assert len(inexact) <= len(gaps) // 10, inexact
    assert report.problems == []
    write_report(report, tmp_path / "report")
    assert await opened_in_a_browser(tmp_path / "report" / PAGE, IMAGES / "incident-report.png") == []
    by_spark = Options([tmp_path / "logs"], tmp_path / "report", "spark", "local[2]")
    assert make_report(by_spark).tables == report.tables
