"""The clients of the matrix: how each is started, and what it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import clients
import pytest

from klamm.testing.waiting import wait_until
from klamm.zookeeper.server.child import dying_with_us

PARTITIONS = 4
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PROGRAM_SECONDS = 120
WAIT_SECONDS = 90
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx128m")


class Seen(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str
    header: str


@dataclass(frozen=True)
class Client:
    name: str
    command: Callable[[], list[str]]
    codecs: tuple[str, ...]
    without: frozenset[str]
    assignor: str
    environment: Callable[[], dict[str, str]]

    def has(self, what: str) -> bool:
        return what not in self.without

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        try:
            command, environment = self.command(), self.environment()
        except clients.ClientMissing as missing:
            pytest.fail(f"cannot install {self.name}: {missing}", pytrace=False)
        return subprocess.Popen(
            list(dying_with_us([*command, *words])),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment | more,
            process_group=0,
        )

    def run(self, *words: str) -> str:
        process = self.start(*words)
        try:
            output, errors = process.communicate(timeout=PROGRAM_SECONDS)
        finally:
            end(process)
        assert process.returncode == 0, f"{self.name} {' '.join(words)}\n{output}{errors}"
        return output


class Member:
    """A running `consume` of a client."""

    def __init__(self, client: Client, process: subprocess.Popen[str]) -> None:
        self.client = client
        self.held: set[int] = set()
        self.seen: list[Seen] = []
        self._process = process
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *words = line.split()
            if kind == "assigned":
                self.held = {int(word) for word in words[0].split(",")} if words else set()
            elif kind == "record":
                self.seen.append(Seen(int(words[0]), int(words[1]), *words[2:]))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        def told() -> str:
            lines = "".join(self._errors[-20:])
            return f"{self.client.name}: {what}; it holds {self.held} and has seen {len(self.seen)} records\n{lines}"

        def met() -> bool:
            assert self._process.poll() is None, f"{self.client.name} has ended\n{''.join(self._errors[-20:])}"
            return condition()

        wait_until(told, met, WAIT_SECONDS)

    def stop(self) -> None:
        """SIGTERM: it leaves the group and ends."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PROGRAM_SECONDS)
        self._join()

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._join()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join()


@contextmanager
def member(
    client: Client, bootstrap: str, topic: str, group: str, isolation: str = "read_uncommitted", **more: str
) -> Iterator[Member]:
    name = f"{group}:{client.assignor}" if client.assignor else group
    process = client.start("consume", bootstrap, topic, name, isolation, **more)
    try:
        yield Member(client, process)
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _command(entry: dict[str, Any]) -> Callable[[], list[str]]:
    match entry:
        case {"python": [library, program]}:
            file = str(clients.SOURCES / "python" / program)
            return lambda: [str(clients.python(library)) if library else sys.executable, file]
        case {"java": version}:
            main = "Client" if version.startswith("0.") else "ModernClient"
            return lambda: ["java", *JVM_FLAGS, "-cp", clients.java(version), main]
        case {"go": program}:
            return lambda: [str(clients.go() / program)]
        case {"javascript": program}:
            return lambda: ["node", str(clients.javascript() / program)]
    raise AssertionError(f"unknown kind of client: {entry}")


def _client(entry: dict[str, Any]) -> Client:
    environment = (lambda: {"KCAT_ROOT": str(clients.kcat())}) if entry["name"].startswith("kcat") else dict
    return Client(
        entry["name"],
        _command(entry),
        tuple(entry.get("codecs", ALL_CODECS)),
        frozenset(entry.get("without", ())),
        entry.get("assignor", ""),
        environment,
    )


CLIENTS = [_client(entry) for entry in clients.listed()]
