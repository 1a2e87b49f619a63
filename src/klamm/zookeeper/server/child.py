"""Child processes that never outlive their owner, and ports that no other process takes.

Only the kernel can end a child when its owner dies, even by `kill -9`: PR_SET_PDEATHSIG. There are three traps:

- It must be set in the child. `preexec_fn` is unsafe in a process with threads, so a small interpreter sets it and then
  *becomes* the program by exec: the pid is the program's own, and signals need no forwarding. The setting survives the
  exec.
- The owner may die before the child has set it. The child therefore checks its parent afterwards and exits if that is
  no longer the owner.
- It fires when the *thread* that forked ends, not the process (prctl(2)). So one thread, which lives as long as the
  process, forks every child; callers may come from any thread and any event loop.

Each child leads its own process group: Ctrl-C at a terminal reaches only the owner, which stops its children in order.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1

_BECOME = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot run {{sys.argv[2]}}: {{error.strerror}}")
"""

_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-children")


class Process(Protocol):
    """What a `Child` needs of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class Child:
    """A running process. It is not bound to an event loop: one loop may start it and another stop it."""

    def __init__(self, process: Process, log_path: Path) -> None:
        self._process = process
        self.log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while the process runs; negative for a signal, as in `subprocess`."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Does nothing if the process has ended. Only this object reaps the pid, so no other process can have it
        yet."""
        if self.returncode is None:
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for the end of the process by a pidfd, without a thread and without polling."""
        if (code := self.returncode) is not None:
            return code
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        pidfd = os.pidfd_open(self.pid)  # becomes readable when the process has ended
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self._process.wait()

    async def stop(self, grace: float) -> int:
        """Send SIGTERM, and SIGKILL if the process has not ended after `grace` seconds. Continues a stopped process
        first."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            return await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        self.signal(signal.SIGKILL)
        return await self.wait()

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


def dying_with_us(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` so that it dies with this process, or with the thread that forks it."""
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *argv]


def start_child(
    argv: Sequence[str], *, log_path: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Child:
    """Start `argv` and append its output to `log_path`. `env` is added to the environment of this process."""
    return in_forking_thread(lambda: _fork(list(argv), log_path, {**os.environ, **(env or {})}, cwd))


def in_forking_thread(fork: Callable[[], T]) -> T:
    """Call a function that forks, in the thread whose end is the end of this process."""
    return _forker.submit(fork).result()


def _fork(argv: list[str], log_path: Path, env: dict[str, str], cwd: Path | None) -> Child:
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            dying_with_us(argv),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            process_group=0,
        )
    return Child(process, log_path)


# --- ports -----------------------------------------------------------------------------------------------------------

_reserved: dict[int, int] = {}  # port -> file descriptor of the socket that reserves it


def reserve_port() -> int:
    """A free TCP port of 127.0.0.1, reserved until `release_port`, even while no server listens on it.

    The port lies below the range from which the kernel picks ports for outgoing connections, because such a connection
    would block the restart of a killed server.
    """
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(15_000, lowest_outgoing) if lowest_outgoing > 16_000 else range(61_000, 65_536)
    choice = random.SystemRandom()
    for _ in range(1_000):
        port = choice.choice(candidates)
        if hold_port(port):
            return port
    raise OSError("no free port found on 127.0.0.1 in 1000 attempts")


def hold_port(port: int) -> bool:
    """Reserve this port of 127.0.0.1, if it is free.

    The reservation is the name of an abstract socket, which vanishes with the process that holds it. Only klamm
    respects it, so the start of a server must still check that it got its port.
    """
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0klamm-port-{port}")
        if not port_is_taken(port):
            _reserved[port] = holder.detach()
            return True
    except OSError:
        pass  # another klamm process has reserved it
    finally:
        holder.close()
    return False


def release_port(port: int) -> None:
    if (holder := _reserved.pop(port, None)) is not None:
        os.close(holder)


def port_is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT counts as free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
