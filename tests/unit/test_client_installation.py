"""`make clients`: a registry that fails for a moment fails nothing, and a client that cannot be installed is named."""

from __future__ import annotations

from pathlib import Path

import clients
import pytest


class Registry:
    """Fails the first times that something is built from it."""

    def __init__(self, *failures: clients.ClientMissing) -> None:
        self._failures = list(failures)
        self.attempts = 0

    def build(self, directory: Path) -> None:
        self.attempts += 1
        assert list(directory.iterdir()) == [], "nothing of an earlier attempt"
        (directory / "program").touch()
        if self._failures:
            raise self._failures.pop(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_CACHE", str(tmp_path))


def test_a_second_attempt_is_made_once_and_its_result_kept() -> None:
    registry = Registry(clients.ClientMissing("no route"))
    directory = clients._built("kcat", [], registry.build)
    assert (directory / "program").exists() and registry.attempts == 2
    assert clients._built("kcat", [], registry.build) == directory
    assert registry.attempts == 2


def test_a_client_that_cannot_be_installed_is_named_with_the_last_reason() -> None:
    registry = Registry(clients.ClientMissing("no route"), clients.ClientMissing("not found"))
    with pytest.raises(clients.ClientMissing, match=r"^kcat: not found$"):
        clients._built("kcat", [], registry.build)


def test_a_tool_that_is_not_installed_is_looked_for_once() -> None:
    registry = Registry(clients.ToolMissing("go is not installed"))
    with pytest.raises(clients.ClientMissing, match=r"^go: go is not installed$"):
        clients._built("go", [], registry.build)
    assert registry.attempts == 1
