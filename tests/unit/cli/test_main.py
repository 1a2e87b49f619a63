"""The entry point of the klamm command: which calls bypass Typer, and what a broker process does not import."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.cli.main import broker_arguments, zookeeper_arguments

STARTED = """
import sys
from klamm.cli.main import main
try:
    main()
except SystemExit as ended:
    print(ended)
unused = {"typer", "pydantic", "rich", "prometheus_client", "kafka", "starlette", "email", "argparse"}
print(sorted(unused & sys.modules.keys()))
"""


HELPED = """
import sys
sys.argv = ["klamm", "--help"]
from klamm.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = ("asyncio", "kafka", "prometheus_client", "klamm.client", "klamm.server", "klamm.wire")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["broker", "a"], ("a", [])),
        (["broker", "--override", "x=1", "a", "--override", "y=-2"], ("a", ["x=1", "y=-2"])),
        (["broker", "a", "b"], None),
        (["broker", "a", "--override"], None),
        (["broker", "a", "--help"], None),
        (["broker"], None),
        (["topics", "list"], None),
        ([], None),
    ],
)
def test_a_plain_broker_goes_past_typer(arguments: list[str], asked: tuple[str, list[str]] | None) -> None:
    assert broker_arguments(arguments) == asked


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["zookeeper"], (2181, None, True)),
        (["zookeeper", "--port", "0"], (0, None, True)),
        (["zookeeper", "--data", "d", "--no-sync", "--port", "5"], (5, Path("d"), False)),
        (["zookeeper", "--data", "d", "--sync"], (2181, Path("d"), True)),
        (["zookeeper", "--data"], None),
        (["zookeeper", "--port", "-1"], None),
        (["zookeeper", "--port", "65536"], None),
        (["zookeeper", "--port=5"], None),
        (["zookeeper", "--help"], None),
        (["broker", "a"], None),
    ],
)
def test_a_plain_zookeeper_goes_past_typer(arguments: list[str], asked: tuple[int, Path | None, bool] | None) -> None:
    found = zookeeper_arguments(arguments)
    assert (None if found is None else tuple(found.values())) == asked


def test_a_broker_imports_neither_the_command_line_nor_clients(tmp_path: Path) -> None:
    """The mistake in the properties is found after all imports."""
    file = tmp_path / "server.properties"
    file.write_text("broker.id=first\n")
    ran = subprocess.run(
        [sys.executable, "-c", STARTED, "broker", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    ended, imported = ran.stdout.splitlines()
    assert ended.startswith("klamm: broker.id='first' is not valid")
    assert imported == "[]"


def test_a_zookeeper_imports_neither_the_command_line_nor_a_broker() -> None:
    """A port in use is found after all imports."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [sys.executable, "-c", STARTED, "zookeeper", "--port", port], capture_output=True, text=True, timeout=60
        )
    ended, imported = ran.stdout.splitlines()
    assert ended.startswith(f"klamm: cannot listen on 127.0.0.1:{port}: ")
    assert imported == "[]"


def test_help_imports_no_more_than_it_prints() -> None:
    ran = subprocess.run([sys.executable, "-c", HELPED], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_file_that_is_not_there() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "klamm", "broker", "nowhere"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (1, "klamm: cannot read nowhere: No such file or directory\n")
