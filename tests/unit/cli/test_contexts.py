"""Contexts: which address a command uses, and what the file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.cli.output import DEFAULT_BOOTSTRAP
from klamm.model.errors import KlammError


class Asked(KlammError):
    """Ends a command where it would connect."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("KLAMM_BOOTSTRAP_SERVER", "KLAMM_CONTEXT", "KLAMM_ZOOKEEPER"):
        monkeypatch.delenv(variable, raising=False)

    def refuse(bootstrap: str, **_: Any) -> Any:
        raise Asked(f"asked {bootstrap}")

    monkeypatch.setattr("klamm.client.blocking.blocking_client", refuse)
    return tmp_path


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env=env)
    return result.exit_code, result.stdout + result.stderr


def test_which_address_wins() -> None:
    asked = ("topics", "list")
    assert run(*asked) == (1, f"klamm: asked {DEFAULT_BOOTSTRAP}\n")
    run("context", "set", "one", "--bootstrap-server", "one:1")
    run("context", "set", "two", "--bootstrap-server", "two:2")
    assert run(*asked) == (1, "klamm: asked one:1\n"), "the first one is used"
    run("context", "use", "two")
    assert run(*asked) == (1, "klamm: asked two:2\n")
    assert run("--context", "one", *asked) == (1, "klamm: asked one:1\n")
    assert run(*asked, env={"KLAMM_CONTEXT": "one"}) == (1, "klamm: asked one:1\n")
    assert run(*asked, env={"KLAMM_BOOTSTRAP_SERVER": "env:3"}) == (1, "klamm: asked env:3\n")
    assert run(*asked, "--bootstrap-server", "given:4", env={"KLAMM_CONTEXT": "one"}) == (1, "klamm: asked given:4\n")


def test_list_and_remove() -> None:
    run("context", "set", "one", "--bootstrap-server", "one:1", "--zookeeper", "zk:2181/k")
    code, listed = run("context", "list", "--json")
    expected = {"bootstrap_server": "one:1", "zookeeper": "zk:2181/k", "security_protocol": "PLAINTEXT"}
    assert (code, json.loads(listed)) == (0, {"used": "one", "contexts": {"one": expected}})
    assert "*  one" in run("context", "list")[1]
    assert run("context", "remove", "one")[0] == 0
    assert run("topics", "list") == (1, f"klamm: asked {DEFAULT_BOOTSTRAP}\n")
    assert run("context", "remove", "one")[0] == 1


@pytest.mark.parametrize(
    "option", [("--security-protocol", "SASL_SSL"), ("--sasl-mechanism", "PLAIN"), ("--tls-ca-file", "ca.pem")]
)
def test_security_is_refused_until_it_exists(option: tuple[str, str]) -> None:
    code, said = run("context", "set", "safe", "--bootstrap-server", "safe:1", *option)
    assert code == 1 and "not supported yet" in said and said.count("\n") == 1
    assert json.loads(run("context", "list", "--json")[1])["contexts"] == {}


def test_a_file_that_asks_for_tls_is_not_ignored(home: Path) -> None:
    run("context", "set", "one", "--bootstrap-server", "one:1")
    file = home / "klamm" / "contexts.json"
    file.write_text(file.read_text().replace("PLAINTEXT", "SSL"))
    code, said = run("topics", "list")
    assert (code, "SSL is not supported yet" in said) == (1, True)


def test_mistakes_are_one_line(home: Path) -> None:
    assert run("context", "set", "x", "--bootstrap-server", "host:port")[0] == 1
    code, said = run("--context", "nowhere", "topics", "list")
    assert (code, said.count("\n")) == (1, 1) and "there is no context nowhere" in said
    (home / "klamm").mkdir(exist_ok=True)
    (home / "klamm" / "contexts.json").write_text("[]")
    code, said = run("topics", "list")
    assert (code, said.count("\n")) == (1, 1) and "is not a file of contexts" in said
