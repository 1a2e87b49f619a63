"""klamm installs from its wheel, alone or beside the Kafka libraries that people have, and works there.

The wheel is built once and installed into a fresh environment with each library. It needs a package registry; where
none can be reached, the reason is the tool's own line.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
UNREACHABLE = ("error sending request", "Failed to fetch", "dns error", "Could not connect")
SMOKE = """
import importlib, sys
assert not [name for name in sys.modules if name == "kafka"]
from klamm.wire.apis import ApiKey
from klamm.wire.messages import decode_request, encode_request, request_class
cls = request_class(ApiKey.METADATA)
asked = cls(topics=[cls.MetadataRequestTopic(name="t")])
assert decode_request(ApiKey.METADATA, 9, encode_request(asked, 9)) == asked
import klamm.server.run_broker, klamm.client.blocking, klamm.testing.cluster
assert "kafka" not in sys.modules
importlib.import_module(sys.argv[1])
"""
ALONE = """
import importlib.util, sys
absent = ("pyspark", "pytest", "kafka", "confluent_kafka")
assert not [name for name in absent if importlib.util.find_spec(name)]
from klamm.testing import running_cluster
servers = ("uvloop", "typer", "rich", "starlette", "uvicorn", "prometheus_client", "jinja2", "klamm.broker")
assert not [name for name in servers if name in sys.modules], "only what runs a cluster as processes"
with running_cluster(brokers=1, zookeeper="memory") as cluster:
    cluster.create_topic("t", partitions=1, replication_factor=1)
    assert cluster.leader_of("t") == cluster.controller
print("ran")
"""
IMPORT = "from klamm.testing import running_cluster"
IMPORT_RATIO_MAX = 25
"""Times the processor time of an interpreter that does nothing, which is 12 ms here: 0.3 s."""
LIBRARIES = [
    ("kafka-python==2.0.2", "kafka"),
    ("kafka-python==2.2.15", "kafka"),
    ("kafka-python>=3", "kafka"),
    ("aiokafka", "aiokafka"),
    ("confluent-kafka", "confluent_kafka"),
]


def run(*command: str | Path) -> str:
    ran = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=240, cwd=ROOT, env=os.environ
    )
    if ran.returncode and any(word in ran.stderr for word in UNREACHABLE):
        pytest.skip(f"no package registry: {ran.stderr.strip().splitlines()[-1]}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", directory)
    (built,) = directory.glob("klamm-*.whl")
    return built


def processor_seconds(python: Path, program: str) -> float:
    """The least of some runs: a busy machine makes runs longer, never shorter."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(python, "-c", program)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def test_alone(wheel: Path, tmp_path: Path) -> None:
    """Without a compiler, Java, Spark or pytest: a program of five lines has a cluster."""
    environment = tmp_path / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--no-build", "--python", python, wheel)
    assert run(python, "-W", "error", "-c", ALONE) == "ran\n"
    assert processor_seconds(python, IMPORT) < IMPORT_RATIO_MAX * processor_seconds(python, "pass")


@pytest.mark.parametrize(("library", "module"), LIBRARIES, ids=[library for library, _ in LIBRARIES])
def test_beside(library: str, module: str, wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    run(UV, "pip", "install", "--quiet", "--python", python, wheel, library)
    run(python, "-W", "ignore", "-c", SMOKE, module)
    assert "topics" in run(environment / "bin" / "klamm", "--help")
