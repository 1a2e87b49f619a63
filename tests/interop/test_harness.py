"""The harness itself: real servers become ready, keep their ports, and never outlive the run."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.cli.zookeeper_address import zookeeper_of
from klamm.server.server_process import ServerNotStarted
from klamm.testing.apache_kafka import ApacheKafkaBroker, MixedCluster, class_archive, run_tool
from klamm.zookeeper.server.child import port_is_taken, release_port, reserve_port
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper, ZooKeeperNotStarted, available, four_letter_word
from klamm.zookeeper.server.embedded_ensemble import EmbeddedEnsemble


async def test_brokers_of_two_kafka_versions_form_one_cluster(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    brokers = [
        ApacheKafkaBroker("2.5.1", 1, zookeeper.connect_string, tmp_path / "1"),
        ApacheKafkaBroker("3.9.1", 2, zookeeper.connect_string, tmp_path / "2"),
    ]
    async with MixedCluster(brokers).running() as cluster:
        for broker in brokers:
            assert str(class_archive(broker.version)) in Path(f"/proc/{broker.pid}/maps").read_text(), "make jars"
        assert await asyncio.to_thread(zookeeper_of, cluster.bootstrap, "") == zookeeper.connect_string
        bootstrap = ("--bootstrap-server", cluster.bootstrap)
        topic = ("--topic", "letters")
        wanted = ("--create", "--partitions", "2", "--replication-factor", "2")
        await run_tool("2.5.1", "kafka.admin.TopicCommand", *bootstrap, *topic, *wanted)
        records = [f"record {number}" for number in range(20)]
        await run_tool(
            "2.5.1",
            "kafka.tools.ConsoleProducer",
            *bootstrap,
            *topic,
            *("--request-required-acks", "all"),
            stdin="\n".join(records),
        )
        counted = ("--from-beginning", "--max-messages", "20", "--timeout-ms", "20000")
        consumed = await run_tool("2.5.1", "kafka.tools.ConsoleConsumer", *bootstrap, *topic, *counted)
        assert sorted(consumed.output.split("\n")[:-1]) == sorted(records)

        await cluster[1].stop()
        survivor = ("--bootstrap-server", cluster[2].address)
        described = await run_tool("2.5.1", "kafka.admin.TopicCommand", *survivor, *topic, "--describe")
        assert described.output.count("Leader: 2") == 2
        states = "".join(broker.state_change_log() for broker in brokers)
        assert re.search(r"Changed partition letters-0 from NewPartition to OnlinePartition", states)


async def test_a_broker_that_cannot_start_says_why(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    broker = ApacheKafkaBroker("2.5.1", 1, zookeeper.connect_string, tmp_path, properties={"num.io.threads": "none"})
    with pytest.raises(ServerNotStarted, match=r"num\.io\.threads"):
        await broker.start()
    assert not broker.alive
    broker.release_ports()


async def test_zookeeper_keeps_data_and_port_over_kill(zookeeper: EmbeddedZooKeeper) -> None:
    port, pid = zookeeper.port, zookeeper.pid
    assert await zookeeper.mode() == "standalone"
    await zookeeper.kill()
    assert await zookeeper.mode() is None
    await zookeeper.start()
    assert (zookeeper.port, await zookeeper.mode()) == (port, "standalone")
    assert zookeeper.pid != pid
    assert "binding to port" in zookeeper.log_text()


async def test_the_ensemble_survives_the_death_of_its_leader(tmp_path: Path) -> None:
    async with EmbeddedEnsemble(tmp_path, force_sync=False).running() as ensemble:
        first = await ensemble.leader()
        assert first is not None
        await first.kill()
        async with asyncio.timeout(60):
            while (second := await ensemble.leader()) is None:
                await asyncio.sleep(0.02)
        assert second is not first
        await first.start()
        assert await first.mode() == "follower"


async def test_a_taken_port_is_one_clear_line(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperNotStarted, match=f"another process uses port {zookeeper.port} of 127.0.0.1"):
        await EmbeddedZooKeeper(tmp_path / "second", port=zookeeper.port).start()


def test_without_java_or_jars_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert available() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "install Java 17" in str(available())
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "klamm[spark]" in str(available())


OWNER = """
import asyncio, sys, threading
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

async def start():
    server = EmbeddedZooKeeper(sys.argv[1], force_sync=False)
    await server.start()
    print(server.pid, server.port, flush=True)

thread = threading.Thread(target=lambda: asyncio.run(start()))
thread.start()
thread.join()
sys.stdin.read()
"""


async def test_a_server_outlives_the_thread_that_asked_for_it_but_not_its_killed_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(  # noqa: ASYNC220  a short fork
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdin is not None and owner.stdout is not None
    with owner.stdin, owner.stdout:
        pid, port = map(int, owner.stdout.readline().split())
        pidfd = os.pidfd_open(pid)
        assert "Mode: standalone" in await four_letter_word(
            "srvr", port
        )  # the thread that asked has ended, the process has not
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        async with asyncio.timeout(10):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)


def test_a_reserved_port_is_given_once_and_again_after_release() -> None:
    ports = [reserve_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not any(port_is_taken(port) for port in ports)
    for port in ports:
        release_port(port)
