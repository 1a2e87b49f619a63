"""Starts servers by forking them from a process that has imported everything: the owner's side (ADR 0016).

One fork server belongs to each process that runs clusters. It starts with the first server, because its imports take
most of a start, and ends with its owner.
"""

from __future__ import annotations

import atexit
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from klamm.model.errors import KlammError
from klamm.zookeeper.server.child import Child, in_forking_thread


def can_fork() -> bool:
    """Only on Linux: elsewhere a fork without exec is not safe, even in a process with one thread, because system
    libraries start threads. And only where pidfds exist: not before Linux 5.3, nor in a sandbox that forbids them."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


CAN_FORK: Final = can_fork()
COMMAND_LINE_MAX: Final = 1024
"""Bytes for the command lines of forked processes, as `ps` shows them."""


class ForkServerEnded(KlammError):
    """The fork server has ended, and with it every process that it forked."""


class ForkServer:
    def __init__(self, log: Path) -> None:
        """`log` takes what it prints, which is only why it could not start."""
        self._connection, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            arguments = [str(theirs.fileno()), str(os.getpid()), "-" * COMMAND_LINE_MAX]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "klamm.server.run_fork_server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._answers = self._connection.makefile("rb")
        self._lock = threading.Lock()
        self._log = log
        self._unread = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, kind: str, argument: Any) -> Any:
        try:
            with self._lock:
                self._send(kind, argument)
                for _ in range(self._unread - 1):
                    marshal.load(self._answers)
                self._unread = 0
                return marshal.load(self._answers)
        except (EOFError, OSError, ValueError):  # ValueError: `end` has closed the connection
            self._process.kill()  # it closes its connection before it has ended, and must not look alive any more
            self._process.wait()
            raise ForkServerEnded(f"the process that forks servers has ended; see {self._log}") from None

    def ask_without_waiting(self, kind: str, argument: Any) -> None:
        """The next `ask` drops the answer."""
        with self._lock, suppress(OSError, ValueError):
            self._send(kind, argument)

    def _send(self, kind: str, argument: Any) -> None:
        self._connection.sendall(marshal.dumps((kind, argument)))
        self._unread += 1

    def end(self) -> None:
        self._process.kill()  # it may be in the middle of its imports
        self._process.wait()
        self._answers.close()
        self._connection.close()


class ForkedProcess:
    """A process of the fork server, with the methods of `subprocess.Popen` that a `Child` needs."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None
        self._lock = threading.Lock()
        self._ended = select.poll()
        self._pidfd = os.pidfd_open(pid)  # of this very process, because only `reap` frees its pid
        self._ended.register(self._pidfd, select.POLLIN)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self) -> int:
        code = self._wait(None)
        assert code is not None
        return code

    def _wait(self, milliseconds: int | None) -> int | None:
        with self._lock:
            if self._code is None and self._ended.poll(milliseconds):
                try:
                    self._code = self._server.ask("reap", self.pid)
                except ForkServerEnded:
                    self._code = -signal.SIGKILL  # the kernel killed this process with the fork server
                os.close(self._pidfd)
            return self._code


_server: ForkServer | None = None
_server_lock = threading.Lock()


def begin(*modules: str) -> None:
    """Start the fork server without waiting for its imports, so that the caller can do its own meanwhile."""
    if CAN_FORK:
        for module in modules:
            _running(Path(os.devnull)).ask_without_waiting("prepare", module)


def prepare(modules: Sequence[str], log: Path) -> None:
    """Return when these modules are imported (`run_fork_server.MODULES`). The broker's take a quarter of a second."""
    for module in modules:
        _running(log).ask("prepare", module)


def start_forked(command: Sequence[str], *, log_path: Path, cwd: Path) -> Child:
    """Like `start_child`, for a command of klamm."""
    log_path.open("ab").close()
    server = _running(log_path)
    pid = server.ask("start", (list(command), dict(os.environ), str(cwd), str(log_path)))
    return Child(ForkedProcess(server, pid), log_path)


def process_id() -> int | None:
    """The pid of the fork server, if it runs."""
    return _server.pid if _server is not None and _server.alive else None


def end() -> None:
    """End the fork server, and every process that it forked."""
    global _server
    with _server_lock:
        if _server is not None:
            _server.end()
        _server = None


def _running(log: Path) -> ForkServer:
    global _server
    with _server_lock:
        if _server is not None and not _server.alive:
            _server.end()
            _server = None
        if _server is None:
            _server = in_forking_thread(lambda: ForkServer(log))
        return _server


atexit.register(end)
