"""`klamm up` as a user runs it: a process that prints lines, gets signals and has children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from klamm.testing.waiting import wait_until

READY = "Ctrl-C stops it."


class Up:
    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self.output = output

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, line: str, timeout: float = 60.0) -> None:
        def said() -> bool:
            return line in self.text or self.process.poll() is not None

        wait_until(lambda: f"{line!r} in: {self.text}", said, timeout)
        assert line in self.text, self.text

    def value(self, name: str) -> str:
        """What the banner says: `bootstrap`, `ZooKeeper`, ..."""
        return next(line.split()[1] for line in self.text.splitlines() if line.split()[:1] == [name])

    def child(self, part: str) -> int:
        """The pid of the process below it whose command line contains `part`."""
        (found,) = [pid for pid, command in self.children().items() if part in command]
        return found

    def brokers(self) -> set[int]:
        return {pid for pid, command in self.children().items() if "/server.properties" in command}

    def children(self) -> dict[int, str]:
        return descendants(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        """Send a signal and wait; return the seconds until the end."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60)
        return time.monotonic() - began


def descendants(pid: int) -> dict[int, str]:
    """The command lines of the children of a process and of theirs: brokers are children of the fork server."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"\nPPid:\t{pid}\n" in (directory / "status").read_text():
                found[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended
    for child in list(found):
        found |= descendants(child)
    return found


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@contextmanager
def running_up(output: Path, *arguments: str, ready: bool = True) -> Iterator[Up]:
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "klamm", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )
    up = Up(process, output)
    try:
        if ready:
            up.wait_for(READY)
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)
