"""Processes from the fork server are as separate as executed ones, and none outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from klamm.server import fork_server
from klamm.server.fork_server import start_forked
from klamm.server.local_cluster import OwnZooKeeper
from klamm.server.run_fork_server import MODULES
from klamm.server.server_process import klamm_command
from klamm.testing.waiting import WAIT_SECONDS, wait_until

from .local_up import is_running


@pytest.fixture
async def zookeeper(tmp_path: Path) -> AsyncIterator[OwnZooKeeper]:
    server = OwnZooKeeper(tmp_path)
    await server.start()
    yield server
    await server.kill()


def sockets_of(pid: int) -> set[str]:
    names = (os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir())
    return {name for name in names if name.startswith("socket:")}


def fork_server_pid() -> int:
    pid = fork_server.process_id()
    assert pid is not None
    return pid


async def test_a_command_has_its_own_output_environment_and_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {}
    for name, command in {"version": ("--version",), "topics": ("topics", "list"), "wrong": ("broker", "none")}.items():
        monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVER", f"not-an-address-of-{name}")
        child = start_forked(klamm_command(*command), log_path=tmp_path / f"{name}.log", cwd=tmp_path)
        codes[name] = await child.wait()
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in codes}
    assert codes == {"version": 0, "topics": 1, "wrong": 1}, logs
    assert logs["version"].startswith("klamm 0.")
    assert "not-an-address-of-topics" in logs["topics"]
    assert logs["wrong"] == "klamm: cannot read none: No such file or directory\n"


async def test_a_server_is_a_process_like_an_executed_one(zookeeper: OwnZooKeeper, tmp_path: Path) -> None:
    pid = zookeeper.pid
    shown = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    assert shown.strip() == " ".join(klamm_command("zookeeper", "--port", "0"))
    assert os.getpgid(pid) == pid, "Ctrl-C at a terminal must not reach it"
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    assert not sockets_of(pid) & sockets_of(fork_server_pid()), "it would keep the fork server's connection open"
    assert await zookeeper.kill() == -signal.SIGKILL
    await zookeeper.start()
    assert zookeeper.pid != pid
    assert await zookeeper.stop() == 0


def test_the_fork_server_has_nothing_that_a_fork_would_copy_in_use(tmp_path: Path) -> None:
    fork_server.prepare(list(MODULES), tmp_path / "log")
    process = Path(f"/proc/{fork_server_pid()}")
    assert len(list((process / "task").iterdir())) == 1, "threads, also those of libraries"
    opened = [os.readlink(file) for file in (process / "fd").iterdir() if int(file.name) > 2]
    assert [name.partition(":")[0] for name in opened] == ["socket"], opened


async def test_all_end_with_the_fork_server_and_the_next_start_has_a_new_one(zookeeper: OwnZooKeeper) -> None:
    pid, former = zookeeper.pid, fork_server_pid()
    os.kill(former, signal.SIGKILL)
    async with asyncio.timeout(WAIT_SECONDS):
        assert await zookeeper.wait_ended() == -signal.SIGKILL
    wait_until("its end", lambda: not is_running(pid))
    await zookeeper.start()
    assert fork_server_pid() != former


async def test_a_process_that_was_never_waited_for_ends_with_the_fork_server(zookeeper: OwnZooKeeper) -> None:
    pid = zookeeper.pid
    fork_server.end()
    # Its first thread may have ended before the others. Only the end of all is the end of the process.
    assert wait_until("its end", lambda: zookeeper.exit_code) == -signal.SIGKILL
    assert not is_running(pid)
    assert fork_server.process_id() is None


async def test_a_fork_server_that_cannot_start_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_server.end()
    (tmp_path / "klamm").mkdir()
    (tmp_path / "klamm" / "__init__.py").write_text("raise ImportError('a broken installation')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = OwnZooKeeper(tmp_path / "directory")
    with pytest.raises(fork_server.ForkServerEnded, match=rf"has ended; see {server.log}$"):
        await server.start()
    assert server.log.read_text().endswith("ImportError: a broken installation\n")
    monkeypatch.undo()
    await server.start()
    assert await server.stop() == 0


def test_a_log_that_cannot_be_written_is_an_error_of_the_owner(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        start_forked(klamm_command("--version"), log_path=tmp_path, cwd=tmp_path)
