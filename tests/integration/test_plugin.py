"""The pytest plugin and `running_cluster` as other projects use them: scopes, errors, reports, nothing left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.model.ids import TopicPartition
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.testing import AsyncKlammCluster, ClusterError, KlammCluster, async_cluster, running_cluster
from klamm.testing.waiting import wait_until
from klamm.zookeeper.client import ZooKeeperClient

from .local_up import descendants, is_running

SUITE = """
import os
import pytest

def test_one(klamm_session_cluster):
    klamm_session_cluster.create_topic("shared")
    assert klamm_session_cluster.leader_of("shared") in klamm_session_cluster.alive

def test_two(klamm_session_cluster):
    assert klamm_session_cluster.isr_of("shared") == [1, 2, 3]

@pytest.mark.klamm(brokers=1, properties={"num.partitions": 3, "auto.create.topics.enable": True})
def test_fails(klamm_cluster):
    assert klamm_cluster.alive == [1]
    assert klamm_cluster.broker_ids == ["a failure"]
"""

HANGING = """
import time

def test_hangs(klamm_cluster):
    klamm_cluster.create_topic("orders")
    print("ready", flush=True)
    time.sleep(600)
"""


SESSION_SECONDS = 40
"""So long that it cannot end by itself during a test, however busy the machine is."""
pytestmark = pytest.mark.klamm(properties={"zookeeper.session.timeout.ms": SESSION_SECONDS * 1000})


def pytest_command(file: Path, *options: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-W",
        "error",
        *options,
        str(file),
    ]


def test_scopes_markers_and_the_report_of_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "test_suite.py"
    file.write_text(SUITE)
    command = pytest_command(file, "--rootdir", str(tmp_path), f"--basetemp={tmp_path / 'base'}")
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "warning" not in run.stdout
    assert "log of klamm broker 1 (running)" in run.stdout
    assert "broker 1 ready: " in run.stdout


def test_a_killed_run_leaves_no_process_behind(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    output = tmp_path / "out.txt"
    with output.open("wb") as stream:
        run = subprocess.Popen(
            pytest_command(file, "-s", "--rootdir", str(tmp_path), f"--basetemp={tmp_path / 'base'}"),
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    wait_until(output.read_text, lambda: "ready" in output.read_text() or run.poll() is not None)
    children = descendants(run.pid)
    assert len(children) == 5, output.read_text()
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    wait_until("the end of its brokers", lambda: not any(map(is_running, children)))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda cluster: cluster.kill(9), "there is no broker 9: the brokers are 1, 2, 3"),
        (lambda cluster: cluster.start(1), "broker 1 is already running"),
        (lambda cluster: cluster.leader_of("nope"), "topic nope does not exist"),
        (lambda cluster: cluster.isr_of("errors", 7), "topic errors has no partition 7: its partitions are 0 to 0"),
        (lambda cluster: cluster.partition(1, 2), "this cluster has no relays: start it with network=True"),
        (lambda cluster: cluster.create_topic("errors"), "topic errors was not created: .*already exists"),
    ],
)
def test_errors_are_one_sentence(
    klamm_module_cluster: KlammCluster, act: Callable[[KlammCluster], None], said: str
) -> None:
    if not klamm_module_cluster.partitions("errors"):
        klamm_module_cluster.create_topic("errors")
    with pytest.raises(ClusterError, match=f"^{said}"):
        act(klamm_module_cluster)


def test_a_killed_broker_is_back_before_its_session_would_end(klamm_module_cluster: KlammCluster) -> None:
    cluster = klamm_module_cluster
    cluster.create_topic("restarted", partitions=3)
    leader = cluster.leader_of("restarted")
    cluster.kill(leader)
    assert cluster.leader_of("restarted") != leader
    began = time.monotonic()
    cluster.start(leader)
    cluster.wait_until_healthy()
    assert time.monotonic() - began < SESSION_SECONDS / 2
    assert cluster.isr_of("restarted") == [1, 2, 3]


def test_an_expired_controller_is_replaced(klamm_module_cluster: KlammCluster) -> None:
    cluster = klamm_module_cluster
    terms = [event for event in cluster.events if event.get("event") == "controller-elected"]
    cluster.expire_session(cluster.controller)

    def elected() -> bool:
        return len([event for event in cluster.events if event.get("event") == "controller-elected"]) > len(terms)

    def expired() -> bool:
        resigned = [event for event in cluster.events if event.get("event") == "controller-resigned"]
        return bool(resigned) and resigned[-1]["cause"] == "ZooKeeper session expired"

    wait_until("a new term", elected)
    wait_until("the old controller to learn of it", expired)  # perhaps after the next one is elected
    cluster.wait_until_healthy()


async def test_zookeeper_grants_the_session_timeout_that_is_asked_for(klamm_module_cluster: KlammCluster) -> None:
    timeout_ms = SESSION_SECONDS * 1000
    client = ZooKeeperClient(
        AsyncioNetwork(), SystemClock(), random.Random(1), klamm_module_cluster.zookeeper, timeout_ms
    )
    async with client.running():
        assert client.session_timeout_ms == timeout_ms


def test_a_topic_of_which_no_broker_has_heard_yet(
    klamm_module_cluster: KlammCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in ZooKeeper, but the controller is slow: that is no topic that does not exist."""
    cluster, document = klamm_module_cluster, b'{"version":1,"partitions":{"0":[1]}}'
    controller = cluster.controller
    monkeypatch.setattr(async_cluster, "UNKNOWN_TOPIC_SECONDS", 0.1)
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    cluster.pause(controller)
    wakes = threading.Timer(0.5, cluster.resume, [controller])
    try:
        zookeeper.create("/brokers/topics/unheard", document)
        wakes.start()
        assert cluster.leader_of("unheard") == 1
    finally:
        wakes.join()
        zookeeper.stop()
        zookeeper.close()


async def test_the_same_cluster_for_asyncio() -> None:
    async with running_cluster(brokers=2) as cluster:
        assert isinstance(cluster, AsyncKlammCluster)
        await cluster.create_topic("orders", min_insync_replicas=1)
        leader = await cluster.leader_of(TopicPartition("orders", 0))
        await cluster.stop(leader)
        assert await cluster.leader_of("orders") != leader
        await cluster.start(leader)
        await cluster.wait_until_healthy()
        assert await cluster.controller() in cluster.alive
        directory = cluster.directory(1).parent.parent
        assert directory.exists()
    assert not directory.exists()


def test_the_import_is_cheap() -> None:
    command = [sys.executable, "-X", "importtime", "-c", "import klamm.testing"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    match = re.search(r"\|\s+(\d+) \| klamm.testing$", lines[-1])
    assert match is not None and int(match[1]) < 300_000, lines[-1]
    assert not any("kafka" in line or "asyncio" in line for line in lines)
