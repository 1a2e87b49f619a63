"""Where servers are forked (ADR 0016)."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from klamm.server import fork_server


def test_where_pidfds_exist_servers_are_forked() -> None:
    assert fork_server.can_fork() is fork_server.CAN_FORK is (sys.platform == "linux")


def test_a_kernel_without_pidfds_executes_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def pidfd_open(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", pidfd_open, raising=False)
    assert not fork_server.can_fork()


def test_other_systems_execute_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not fork_server.can_fork()
