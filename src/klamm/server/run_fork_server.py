"""The fork server: a process that has imported what servers need, and forks one whenever its owner asks (ADR 0016).

It has one thread and never runs an event loop, so a fork copies nothing that is in use. A forked process gets its own
environment, directory, output, process group and command line, and becomes the `klamm` command. It dies with the fork
server, which dies with its owner.

The owner (`fork_server`) sends requests and reads one answer to each. `prepare` imports a module, `start`
answers with a pid, `reap` with the exit code of a process that has ended; only then its pid is free.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

MODULES: Final = {
    "zookeeper": "klamm.server.run_zookeeper",
    "broker": "klamm.server.run_broker",
    "http": "klamm.server.http_server",
}
"""What a fork server can prepare."""
_PR_SET_PDEATHSIG: Final = 1
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Fields of /proc/PID/stat, counted from the one that follows the name."""


class Start(NamedTuple):
    command: list[str]
    """An interpreter, `-m`, `klamm` and arguments."""
    environment: dict[str, str]
    directory: str
    log: str


def main(connection: int, owner: int) -> None:
    """Serve the owner. A forked process returns from `serve` and runs a command."""
    die_with(owner)
    fork_server = os.getpid()
    show_as("klamm fork-server")
    gc.disable()  # imported modules stay, and a search would write to pages that processes share
    with open(connection, "rb") as requests, open(connection, "wb", closefd=False) as answers:
        start = serve(requests, answers)
    die_with(fork_server)
    become(start)
    runpy.run_module("klamm", run_name="__main__", alter_sys=True)


def serve(requests: BinaryIO, answers: BinaryIO) -> Start:
    """Answer until the owner closes the connection. Returns only in a forked process."""
    while True:
        try:
            kind, argument = marshal.load(requests)
        except EOFError:
            os._exit(0)
        answer: Any = None
        if kind == "prepare":
            import_module(MODULES[argument])
        elif kind == "reap":
            answer = os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1])
        else:
            gc.freeze()
            answer = os.fork()
            if answer == 0:
                return Start(*argument)
        marshal.dump(answer, answers)
        answers.flush()
        if kind == "start":
            import_module(MODULES["broker"])  # while a ZooKeeper starts: the brokers are next


def become(start: Start) -> None:
    """Make this forked process what an executed one would be."""
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor, wanted in ((null, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, wanted)
    os.close(null)
    os.close(log)
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    show_as(" ".join(start.command))
    sys.argv = start.command[2:]
    gc.enable()


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies, or end it if that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def show_as(command: str) -> None:
    """Let `ps` show this command line instead of the one that was executed, as far as there is room for it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    room = end - begin - 2
    shown = os.fsencode(command)[:room]
    # If the last byte is not zero, the kernel takes everything before the first zero as the command line (proc(5)).
    ctypes.memmove(begin, shown + bytes(room - len(shown) + 1) + b" ", room + 2)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
