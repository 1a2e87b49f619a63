"""`klamm up` on one data directory, again and again: stops, kills, leftovers, a second one, taken ports."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path

import pytest

from klamm.testing import KlammCluster
from klamm.testing.waiting import wait_until

from .local_up import descendants, is_running, running_up

MEMORY = ("--zookeeper", "memory", "--port", "0")


def klamm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "klamm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def one_line(refused: subprocess.CompletedProcess[str]) -> str:
    assert refused.returncode == 1, refused.stdout
    assert refused.stderr.count("\n") == 1, refused.stderr
    return refused.stderr


def test_again_and_again_on_the_same_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_up(tmp_path / "1.txt", "--data", str(data), *MEMORY) as up:
        bootstrap, zookeeper = up.value("bootstrap"), up.value("ZooKeeper")
        created = klamm("topics", "create", "orders", "--bootstrap-server", bootstrap)
        assert created.returncode == 0, created.stderr
        assert "already runs on this data, in process" in one_line(klamm("up", "--data", str(data)))
        assert len(up.children()) == 6, "the second one started nothing"
        up.stop()
        assert up.process.returncode == 0, up.text
        for broker in (1, 2, 3):
            assert (data / f"broker-{broker}" / "data" / ".kafka_cleanshutdown").exists(), "each was stopped once"
            assert not (data / f"broker-{broker}" / "data" / ".klamm-session").exists()

    with running_up(tmp_path / "2.txt", "--data", str(data)) as up:
        assert (up.value("bootstrap"), up.value("ZooKeeper")) == (bootstrap, zookeeper), "ports are kept"
        children = up.children()
        up.process.kill()
        wait_until("the end of all children", lambda: not any(map(is_running, children)))

    with running_up(tmp_path / "3.txt", "--data", str(data)) as up:
        assert up.value("bootstrap") == bootstrap
        assert klamm("topics", "list", "--bootstrap-server", bootstrap).stdout == "orders\n"
        up.stop()
    other = one_line(klamm("up", "--data", str(data), "--zookeeper", "embedded"))
    assert "this data was made with --zookeeper memory" in other


def test_the_dashboard_answers_and_ends_with_the_cluster(tmp_path: Path) -> None:
    with running_up(tmp_path / "out.txt", *MEMORY) as up:
        url, data = up.value("dashboard"), Path(up.value("data"))

        def answers() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=10) as page:
                    return "Healthy: 3 brokers" in page.read().decode()
            except OSError:
                return False  # it starts after the brokers, and nothing waits for it

        wait_until(lambda: f"the dashboard: {(data / 'dashboard.log').read_text()}", answers)
        children = up.children()
        os.kill(up.child("klamm dashboard"), signal.SIGKILL)
        up.wait_for("the dashboard was killed by SIGKILL")
        up.wait_for("the dashboard is back after ")
        wait_until("the dashboard again, at the same address", answers)
        children |= up.children()
        up.stop()
        assert up.process.returncode == 0, up.text
        assert not any(map(is_running, children))


def test_what_dies_is_brought_back(tmp_path: Path) -> None:
    with running_up(tmp_path / "out.txt", *MEMORY) as up:
        os.kill(up.child("broker-2/server.properties"), signal.SIGKILL)
        up.wait_for("broker 2 was killed by SIGKILL; it starts again in 1 s")
        up.wait_for("broker 2 is back after ")
        os.kill(up.child("klamm zookeeper"), signal.SIGKILL)
        up.wait_for("ZooKeeper was killed by SIGKILL")
        up.wait_for("ZooKeeper is back after ")
        created = klamm("topics", "create", "orders", "--bootstrap-server", up.value("bootstrap"))
        assert created.returncode == 0, created.stderr
        data = Path(up.value("data"))
        up.stop()
        assert not data.exists(), "without --data nothing stays"


def test_the_commands_of_the_banner_work_when_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal that knows neither the command nor the ports."""
    known = [each for each in os.environ["PATH"].split(":") if not (Path(each) / "klamm").exists()]
    monkeypatch.setenv("PATH", ":".join(known))
    monkeypatch.delenv("KLAMM_BOOTSTRAP_SERVER", raising=False)
    with running_up(tmp_path / "out.txt", *MEMORY) as up:
        _, _, advice = up.text.partition("Try in another terminal:\n")
        prepare, create, kill, describe = advice.splitlines()[:4]

        def paste(line: str) -> str:
            shell = ["bash", "-c", f"{prepare}\n{line}"]
            ran = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        assert paste(create) == "created topic orders with 6 partitions, 3 replicas each\n"
        killed = paste(kill)
        broker = killed.split()[2].rstrip(",")
        assert killed.startswith(f"killed broker {broker}, the leader of orders-0 (process ")
        up.wait_for(f"broker {broker} was killed by SIGKILL")
        up.wait_for(f"broker {broker} is back after ")
        assert paste(describe).count("\n") == 7
        at = ("--bootstrap-server", up.value("bootstrap"))
        assert one_line(klamm("chaos", "kill-leader", "nothing", *at)) == "klamm: topic nothing does not exist\n"
        no_partition = one_line(klamm("chaos", "kill-leader", "orders", "--partition", "9", *at))
        assert no_partition == "klamm: topic orders has no partition 9\n"


def test_chaos_kills_only_what_is_brought_back(klamm_cluster: KlammCluster) -> None:
    klamm_cluster.create_topic("orders")
    refused = one_line(klamm("chaos", "kill-leader", "orders", "--bootstrap-server", klamm_cluster.bootstrap))
    assert "was not started by a klamm up of yours" in refused
    assert klamm_cluster.alive == [1, 2, 3]


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    with running_up(tmp_path / "out.txt", *MEMORY, "--brokers", "1") as up:
        broker = up.child("broker-1/server.properties")
        data = Path(up.value("data"))
        os.kill(up.child("klamm zookeeper"), signal.SIGSTOP)  # the broker cannot end its session
        up.process.send_signal(signal.SIGINT)
        up.wait_for("stopping")
        up.wait_for("waiting for broker 1: ")
        assert up.stop() < 6.0, "without hurry it takes ten seconds"
        assert not is_running(broker)
        assert not data.exists()


def test_ports_and_paths_that_cannot_be_used(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        data = tmp_path / "data"
        refused = one_line(klamm("up", "--port", str(port), "--zookeeper", "memory", "--data", str(data)))
        assert f"port {port} for broker 1 is taken" in refused
        assert not (data / "zookeeper.log").exists(), "noticed before ZooKeeper was started"
    file = tmp_path / "file"
    file.write_text("")
    assert f"--data {file}: File exists" in one_line(klamm("up", "--data", str(file)))
    assert f"--data {file}/below: Not a directory" in one_line(klamm("up", "--data", str(file / "below")))


def test_a_broker_says_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs={tmp_path}/data\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "zookeeper.connection.timeout.ms=2500\n"
    )
    refused = klamm("broker", str(tmp_path / "server.properties"))
    waiting, *_, last = refused.stderr.splitlines()[-2:]
    assert "waiting for ZooKeeper, zookeeper.connect=127.0.0.1:1: 127.0.0.1:1: " in waiting, refused.stderr
    assert last.startswith("klamm: zookeeper.connect=127.0.0.1:1: ")


def test_brokers_under_one_parent_have_their_own_event_files(tmp_path: Path) -> None:
    unusable = tmp_path / "file"
    unusable.write_text("")
    (tmp_path / "server.properties").write_text(
        f"broker.id=1\nzookeeper.connect=127.0.0.1:1\nlog.dirs={unusable}/data\nlisteners=PLAINTEXT://127.0.0.1:0\n"
    )
    said = klamm("broker", str(tmp_path / "server.properties")).stderr.splitlines()[-1]
    assert said == (
        f"klamm: cannot write state-change.log and state-change.json, because {unusable}/data: Not a directory"
    )


def test_a_terminal_gets_a_live_view(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 160, 0, 0))
    command = [sys.executable, "-m", "klamm", "up", *MEMORY, "--brokers", "2"]
    up = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    screen = bytearray()

    def shows(*parts: str) -> bool:
        while select.select([master], [], [], 0)[0]:
            try:
                screen.extend(os.read(master, 65536))
            except OSError:  # the terminal closed
                break
        return all(part.encode() in screen for part in parts)

    try:
        wait_until(lambda: screen.decode(), lambda: shows("healthy", "controller   broker", "klamm chaos kill-leader"))
        (broker,) = [pid for pid, line in descendants(up.pid).items() if "broker-2/" in line]
        os.kill(broker, signal.SIGKILL)
        wait_until(lambda: screen.decode(), lambda: shows("broker 2 was killed by SIGKILL", "1 broker down: 2"))
        wait_until(lambda: screen.decode(), lambda: shows("broker 2 is back after"))
    finally:
        up.send_signal(signal.SIGINT)
        wait_until("the end", lambda: shows() and up.poll() is not None)
        os.close(master)
