"""Every `klamm ...` line of README and docs is run, page by page, on one cluster, as a reader would paste it.

docs/getting-started.md has a test of its own (`test_getting_started.py`). What takes minutes, or needs more than a
cluster, is run elsewhere: see ELSEWHERE.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from klamm.testing.waiting import wait_until
from klamm.zookeeper.server.child import release_port, reserve_port

from .local_up import Up, running_up

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^ *```[a-z]*\n(.*?)^ *```", re.M | re.S)
ELSEWHERE = {
    "klamm bench ": "tests/integration/test_bench_controller.py",
    "klamm lake ": "tests/interop/test_lake.py",
}
"""The beginning of a line, and the test that runs such lines."""
PAGES = ("README.md", "docs/controllers.md", "docs/dashboard.md", "docs/operating.md", "docs/transactions.md")
ALSO = ("docs/getting-started.md", "docs/commands.md", "docs/incidents.md")
"""Pages whose lines are run by another test, have no lines of their own, or repeat README's."""
FOREVER = {
    "klamm broker ": " ready: ",
    "klamm dashboard ": "dashboard ready: ",
    "klamm events tail ": "+00:00  broker ",
}
"""Commands that run until Ctrl-C, and what they print when they work."""
REFUSED = {
    "klamm reassign throttle ": "no partition is being moved",
    "klamm reassign cancel ": "nothing to cancel",
    "klamm transactions abort ": "has no open transaction that begins at 4711",
}
"""Commands that may be refused here, because nothing is left to be done, and the words that say so."""


def lines_of(page: str) -> list[str]:
    found = []
    for block in BLOCK.findall((ROOT / page).read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.partition("  #")[0].strip().removeprefix("$ ")
            if line.startswith("klamm ") and not line.startswith("klamm is "):
                found.append(line)
    return found


def properties_of(page: str) -> str:
    """The one server.properties in the page."""
    (found,) = [block for block in BLOCK.findall((ROOT / page).read_text()) if "zookeeper.connect=" in block]
    return "".join(f"{line.strip()}\n" for line in found.splitlines())


class Reader:
    """Pastes lines into a shell, with the addresses and paths of this cluster for those of the page."""

    def __init__(self, up: Up, directory: Path, processes: ExitStack) -> None:
        self._processes = processes
        self.directory = directory
        self.data = Path(up.value("data"))
        self.bootstrap, self.zookeeper = up.value("bootstrap"), up.value("ZooKeeper")
        self.environment = {
            **os.environ,
            "KLAMM_BOOTSTRAP_SERVER": self.bootstrap,
            "XDG_CONFIG_HOME": str(directory),
            "KLAMM_DASHBOARD_PASSWORD": "correct horse",
        }

    def here(self, line: str) -> str:
        line = re.sub(r"zk1:2181,zk2:2181/kafka|\bzk:2181", self.zookeeper, line)
        line = re.sub(r"\b(kafka|broker)-1:9092", self.bootstrap, line)
        line = re.sub(r"(/logs/)?\b(broker-\d)(/| |$)", rf"{self.data}/\2\3", line)
        line = line.replace("/var/lib/klamm", str(self.data)).replace("/etc/klamm/", f"{self.directory}/")
        return line if "klamm dashboard" not in line else f"{line} --port 0"

    def paste(self, line: str) -> None:
        beginning = next((begins for begins in FOREVER if line.startswith(begins)), None)
        if beginning is not None:
            self._processes.enter_context(self._running(line, FOREVER[beginning]))
            return
        shell = f'klamm() {{ "{sys.executable}" -m klamm "$@"; }}\n{self.here(line)}'
        ran = subprocess.run(
            ["bash", "-c", f"set -o pipefail\n{shell}"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = f"{line}\n{ran.stdout}{ran.stderr}"
        assert "Traceback" not in said, said
        refusal = next((words for begins, words in REFUSED.items() if line.startswith(begins)), None)
        assert ran.returncode == 0 or (ran.returncode == 1 and refusal is not None and refusal in ran.stderr), said

    @contextmanager
    def _running(self, line: str, ready: str) -> Iterator[None]:
        output = self.directory / f"{abs(hash(line))}.txt"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", *shlex.split(self.here(line))],
                cwd=self.directory,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(output.read_text, lambda: ready in output.read_text() or process.poll() is not None)
            assert ready in output.read_text(), f"{line}\n{output.read_text()}"
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Four brokers, so that one can be drained; and controller nodes for docs/operating.md, made from its file."""
    directory = tmp_path_factory.mktemp("reader")
    data = ("--data", str(directory / "data"), "--zookeeper", "memory", "--brokers", "4", "--port", "0")
    with running_up(directory / "up.txt", *data) as up, ExitStack() as processes:
        found = Reader(up, directory, processes)
        (directory / "password").write_text("correct horse")
        found.paste("klamm topics create orders --partitions 6 --replication-factor 3")
        producer = Producer({"bootstrap.servers": found.bootstrap, "transactional.id": "my-transactional-id"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"one")
        producer.commit_transaction(30)
        yield found


@pytest.fixture
def controller_nodes(reader: Reader) -> Iterator[None]:
    text = reader.here(properties_of("docs/operating.md"))
    ports = [reserve_port() for _ in range(6)]
    with ExitStack() as nodes:
        for number, name in enumerate(("controller", "second")):
            client, internal, http = ports[3 * number : 3 * number + 3]
            mine = text.replace("controller-1:9092", f"127.0.0.1:{client}").replace(
                "controller-1:9093", f"127.0.0.1:{internal}"
            )
            mine = mine.replace("29092", str(http)).replace("broker.id=901", f"broker.id={901 + number}")
            mine = re.sub(r"log.dirs=.*", f"log.dirs={reader.directory / name}", mine)
            mine = mine.replace(
                "inter.broker.protocol.version=2.5", "inter.broker.protocol.version=2.6"
            )  # as the others
            (reader.directory / f"{name}.properties").write_text(mine)
        nodes.enter_context(reader._running("klamm broker second.properties", " ready: "))
        yield
    for port in ports:
        release_port(port)


def test_readme(reader: Reader) -> None:
    lines = [line for line in lines_of("README.md") if not line.startswith(tuple(ELSEWHERE))]
    assert any(line.startswith("klamm chaos kill-leader") for line in lines)
    reader.paste("klamm topics delete orders --yes")
    done = []
    for line in lines:
        if line in done:
            continue  # the banner of `klamm up` and the text below it have the same lines
        done.append(line)
        reader.paste(line)


def test_controllers_and_dashboard(reader: Reader) -> None:
    for page in ("docs/controllers.md", "docs/dashboard.md"):
        for line in lines_of(page):
            reader.paste(line)


def test_operating(reader: Reader, controller_nodes: None) -> None:
    for line in lines_of("docs/operating.md"):
        reader.paste(line)


def test_transactions(reader: Reader) -> None:
    for line in lines_of("docs/transactions.md"):
        reader.paste(line)


def test_no_page_is_forgotten() -> None:
    pages = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    with_lines = {str(page.relative_to(ROOT)) for page in pages if lines_of(str(page.relative_to(ROOT)))}
    assert with_lines <= {*PAGES, *ALSO}
    assert set(lines_of("docs/incidents.md")) <= set(lines_of("README.md"))
    for begins, path in ELSEWHERE.items():
        assert begins.split()[1] in (ROOT / path).read_text()
