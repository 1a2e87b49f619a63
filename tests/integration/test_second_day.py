"""The second day: an operator works on one data directory. After each step there is a line that says what happened.

docs/operating.md has the lines of all steps; the tests look for exactly these.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from klamm.testing.waiting import wait_until
from klamm.zookeeper.server.child import release_port, reserve_port

from .local_up import is_running, running_up

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
LINES = {int(step): line for step, line in re.findall(r"^\| (\d+) \|.*\| `(.*)` \|$", PAGE.read_text(), re.M)}
SEEN: set[int] = set()
UP = ("--zookeeper", "memory", "--brokers", "1", "--port", "0")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "klamm", *arguments]


def klamm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), input=stdin, capture_output=True, text=True, timeout=60, check=False)


def sees(step: int, text: str) -> None:
    """The line that the page promises; `…` is anything."""
    wanted = ".*".join(map(re.escape, LINES[step].split("…")))
    assert re.search(wanted, text), f"{step}: {LINES[step]}\n{text}"
    SEEN.add(step)


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stderr.splitlines()[-1].removeprefix("klamm: ")


@contextmanager
def server(log: Path, *arguments: str, ready: str = " ready: ") -> Iterator[subprocess.Popen[bytes]]:
    """A server in the foreground of another terminal."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command(*arguments), stdout=stream, stderr=subprocess.STDOUT)
    try:
        wait_until(log.read_text, lambda: ready in log.read_text() or process.poll() is not None)
        assert ready in log.read_text(), log.read_text()
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def records(bootstrap: str) -> int:
    read = klamm(
        "consume",
        "orders",
        "--from-beginning",
        "--timeout-ms",
        "3000",
        "--max-messages",
        "10",
        "--bootstrap-server",
        bootstrap,
    )
    return read.stdout.count("\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("second-day") / "data"


def test_1_to_7_with_klamm_up(data: Path, tmp_path: Path) -> None:
    # 1. The first start, a topic, ten records.
    with running_up(tmp_path / "1.txt", "--data", str(data), *UP) as up:
        at = ("--bootstrap-server", up.value("bootstrap"))
        created = klamm("topics", "create", "orders", *at)
        sees(1, created.stdout)
        numbers = "".join(f"{number}\n" for number in range(10))
        assert klamm("produce", "orders", *at, stdin=numbers).stderr == "sent 10 records to orders\n"
        # 2. A second one on the same data.
        sees(2, last_line(klamm("up", "--data", str(data))))
        # 3. The broker is killed.
        os.kill(up.child("broker-1/"), signal.SIGKILL)
        up.wait_for("broker 1 is back after ")
        sees(3, up.text)
        # 4. It is killed again, and once more while it starts and recovers its logs.
        failed, back = "broker 1 did not start: broker 1 ended with code -9", "broker 1 is back after "
        while failed not in up.text:
            starts = up.text.count(back)
            former = up.child("broker-1/")
            os.kill(former, signal.SIGKILL)
            again = wait_until("the next process", lambda former=former: up.brokers() - {former})
            os.kill(again.pop(), signal.SIGKILL)
            # On a busy machine it may be ready before it is killed. Then it is back twice, and it all begins again.
            wait_until(lambda: up.text, lambda n=starts: failed in up.text or up.text.count(back) == n + 2)
        wait_until("another start", lambda: up.text.count(back) > starts)
        sees(4, up.text)
        # 5. ZooKeeper is killed.
        os.kill(up.child("klamm zookeeper"), signal.SIGKILL)
        up.wait_for("ZooKeeper is back after ")
        sees(5, up.text)
        wait_until("the records", lambda: records(up.value("bootstrap")) == 10)
        # 6. Everything is killed at once; the next start is as if nothing had happened.
        children = up.children()
        up.process.kill()
        wait_until("the end of all children", lambda: not any(map(is_running, children)))
    log = data / "broker-1" / "broker.log"
    before = len(log.read_bytes())
    with running_up(tmp_path / "2.txt", "--data", str(data)) as up:
        # "ended session ..."; "could not end ... it is over" if the start took longer than its timeout of 6 s.
        sees(6, log.read_bytes()[before:].decode())
        wait_until("the records again", lambda: records(up.value("bootstrap")) == 10)
        # 7. A clean stop.
        up.stop()
        sees(7, up.text)
        assert up.text.endswith("stopped\n")


def test_8_to_15_with_a_broker_of_ones_own(data: Path, tmp_path: Path) -> None:
    properties = str(data / "broker-1" / "server.properties")
    address = Path(properties).read_text().partition("zookeeper.connect=")[2].split()[0]
    keep = ("zookeeper", "--data", str(data / "zookeeper"), "--port", address.rpartition(":")[2])
    # 8. ZooKeeper is not there.
    short = ("--override", "zookeeper.connection.timeout.ms=1500")
    waited = klamm("broker", properties, *short)
    sees(8, waited.stderr)
    assert last_line(waited).startswith(f"zookeeper.connect={address}: ")
    # 9. A misspelt key, and a value that is none.
    typo = klamm("broker", properties, "--override", "klamm.fast.failver=true")
    sees(9, last_line(typo))
    wrong = klamm("broker", properties, "--override", "num.partitions=many")
    assert last_line(wrong).startswith("num.partitions='many' is not valid: it must be an integer from 1")
    with server(tmp_path / "zookeeper.txt", *keep):
        # 10. Another id than the data has.
        other_id = klamm("broker", properties, "--override", "broker.id=7")
        sees(10, last_line(other_id))
        # 11. Another cluster.
        with server(tmp_path / "other.txt", "zookeeper", "--port", "0") as _:
            other = (tmp_path / "other.txt").read_text().partition("ready: ")[2].split()[0]
            strange = klamm("broker", properties, "--override", f"zookeeper.connect={other}")
            sees(11, last_line(strange))
        # 12. A changed property takes effect at the next start.
        with server(tmp_path / "broker.txt", "broker", properties, "--override", "num.partitions=5"):
            client = (tmp_path / "broker.txt").read_text().partition("CLIENT://")[2].partition(",")[0]
            assert "num.partitions=5" in (tmp_path / "broker.txt").read_text()
            created = klamm("topics", "create", "more", "--bootstrap-server", client)
            sees(12, created.stdout)
            # 13. A second broker on the same directory.
            twice = klamm("broker", properties)
            sees(13, last_line(twice))
        # 14. Another broker registered the id in the meantime.
        stranger = KazooClient(address)
        stranger.start()
        endpoint = b'{"version":4,"host":"h","port":1,"jmx_port":-1,"timestamp":"1","endpoints":["INTERNAL://h:1"],"listener_security_protocol_map":{"INTERNAL":"PLAINTEXT"}}'
        stranger.create("/brokers/ids/1", endpoint, ephemeral=True)
        try:
            sees(14, last_line(klamm("broker", properties)))
        finally:
            stranger.stop()
            stranger.close()
    # 15. The disk of ZooKeeper is full.
    port = reserve_port()
    limited = f"ulimit -f 8; exec {sys.executable} -m klamm zookeeper --data {tmp_path}/full --port {port}"
    with (tmp_path / "full.txt").open("wb") as stream:
        full = subprocess.Popen(limited, shell=True, stdout=stream, stderr=subprocess.STDOUT)
    wait_until("ZooKeeper", lambda: "ready" in (tmp_path / "full.txt").read_text())
    filler = KazooClient(f"127.0.0.1:{port}", connection_retry={"max_tries": 0}, command_retry={"max_tries": 0})
    filler.start()
    try:
        with pytest.raises(KazooException):
            for number in range(20):
                filler.create(f"/filler-{number}", b"x" * 1000)
        assert full.wait(30) == 1
        sees(15, (tmp_path / "full.txt").read_text())
    finally:
        filler.stop()
        filler.close()
        release_port(port)
    assert sorted(SEEN) == list(range(1, 16)) == sorted(LINES), "every step of the page, and no other"
