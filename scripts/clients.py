"""Installs the clients of tests/interop/clients into the cache: pinned, once, from the registries of their languages.

`make clients` installs all of them, so that no test waits for the network. A directory of the cache is named after
what it is made from, so a changed program or version is built anew. What cannot be installed is named with the reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from klamm.testing.kafka_jars import Artifact, JarsMissing, cache_directory, fetched_jars

SOURCES: Final = Path(__file__).parents[1] / "tests" / "interop" / "clients"
TIMEOUT_SECONDS: Final = 900
ATTEMPTS: Final = 2
"""A registry may fail for a moment."""
PYTHON_LIBRARIES: Final = ("kafka-python-2.0.2", "kafka-python-2.2.15", "kafka-python-3.0.12", "aiokafka")
JAVA_CLIENTS: Final = ("0.10.2.2", "1.0.2", "2.5.1", "3.9.1")
STREAMS: Final = ("2.5.1", "3.9.1")
CONNECT: Final = "3.9.1"
SUITES_OF_KAFKA_PYTHON: Final = ("2.2.15", "3.0.12")
SUITE_OF_LIBRDKAFKA: Final = "2.12.0"
PACKAGE_WITH_LIBRDKAFKA: Final = "node-rdkafka@3.6.1"
"""librdkafka itself is in no registry, but this package of npm has all of its sources."""
KCAT_PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")
DONE: Final = ".done"


def listed() -> list[dict[str, Any]]:
    """The entries of clients.toml."""
    return list(tomllib.loads((SOURCES / "clients.toml").read_text())["client"])


class ClientMissing(RuntimeError):
    """The message says in one line what could not be installed, and why."""


class ToolMissing(ClientMissing):
    """A second attempt would not find it either."""


def python(library: str) -> Path:
    """The interpreter of an environment with this library."""
    requirements = SOURCES / "python" / f"{library}.txt"

    def build(directory: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, directory])
        _run([uv, "pip", "install", "--quiet", "--python", directory / "bin" / "python", "-r", requirements])

    return _built(library, [requirements], build) / "bin" / "python"


def kafka_python_sources(version: str) -> Path:
    """The source distribution of kafka-python, with its tests. Its package is set aside, because it is installed, and
    a module that the distribution leaves out is replaced."""
    replacement = SOURCES / "python" / "external_service.py"

    def build(directory: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        _run([*command, "--dest", directory, f"kafka-python=={version}"])
        (archive,) = directory.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        next(directory.glob("kafka*python-*/")).rename(directory / "sources")
        (directory / "sources" / "kafka").rename(directory / "installed-elsewhere")
        (directory / "sources" / "test" / "__init__.py").touch()
        shutil.copy(replacement, directory / "sources" / "test" / "service.py")

    return _built(f"kafka-python-{version}-sources", [replacement], build) / "sources"


def go() -> Path:
    """A directory with the programs `franz` and `sarama`, and franz-go's own tests as `kgo.test`."""
    sources = SOURCES / "go"

    def build(directory: Path) -> None:
        _run(["go", "build", "-o", directory, "./franz", "./sarama"], cwd=sources)
        _run(["go", "test", "-c", "-o", directory / "kgo.test", "github.com/twmb/franz-go/pkg/kgo"], cwd=sources)

    return _built("go", sorted(sources.rglob("*.*")), build)


def franz_go_sources() -> Path:
    """The directory of franz-go's tests: some of them read the sources."""
    command = ["go", "list", "-f", "{{.Dir}}", "github.com/twmb/franz-go/pkg/kgo"]
    return Path(subprocess.check_output(command, cwd=SOURCES / "go", text=True).strip())


def javascript() -> Path:
    """A directory with the program kafkajs_client.js and its modules."""
    sources = sorted((SOURCES / "javascript").glob("*.js*"))

    def build(directory: Path) -> None:
        for file in (*sources, SOURCES / "javascript" / ".npmrc"):
            shutil.copy(file, directory)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel", "error"], cwd=directory)

    return _built("javascript", sources, build)


def librdkafka_tests() -> Path:
    """The program that runs librdkafka's own tests."""

    def build(directory: Path) -> None:
        _run(["npm", "pack", "--silent", PACKAGE_WITH_LIBRDKAFKA], cwd=directory)
        (archive,) = directory.glob("*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        sources = directory / "package" / "deps" / "librdkafka"
        _run([sources / "configure", "--disable-gssapi", "--disable-curl", "--disable-optimization"], cwd=sources)
        for part, target in (("src", "librdkafka.a"), ("src-cpp", "librdkafka++.a"), ("tests", "test-runner")):
            _run(["make", "-j2", "-C", sources / part, target])
        shutil.copy(sources / "tests" / "test-runner", directory)
        shutil.rmtree(directory / "package")
        archive.unlink()

    return _built(f"librdkafka-tests-{SUITE_OF_LIBRDKAFKA}", [], build) / "test-runner"


def java(version: str) -> str:
    """The class path of the program Client, and of ModernClient and IncrementalClient where this version has what they
    need."""
    classes = ["Client.java"]
    if not version.startswith("0."):
        classes.append("ModernClient.java")
        if not version.startswith("1."):
            classes.append("IncrementalClient.java")
    return _java_program(f"java-{version}", classes, client_jars(version))


def streams(version: str) -> str:
    """The class path of the program WordCount."""
    jars = [Artifact("org.apache.kafka", "kafka-streams", version)]
    return _java_program(f"streams-{version}", ["WordCount.java"], _jars(f"kafka-streams-{version}", jars))


def connect(version: str = CONNECT) -> Path:
    """The jars of Kafka Connect with its file connectors."""
    names = ("connect-runtime", "connect-file", "connect-json")
    jars = [Artifact("org.apache.kafka", name, version) for name in names]
    return _jars(f"kafka-connect-{version}", [*jars, Artifact("org.slf4j", "slf4j-reload4j", "1.7.36")])


def client_jars(version: str) -> Path:
    return _jars(f"kafka-clients-{version}", [Artifact("org.apache.kafka", "kafka-clients", version)])


def kcat() -> Path:
    """The root of an unpacked kcat of Debian, which needs no right to install packages."""

    def build(directory: Path) -> None:
        if not shutil.which("apt-get"):
            raise ToolMissing("this is no Debian; its packages are unpacked with apt-get and dpkg")
        download = ["apt-get", "download", "-qq", *KCAT_PACKAGES]
        try:
            _run(download, cwd=directory)
        except ClientMissing:
            _run(["apt-get", "update", "-qq"])
            _run(download, cwd=directory)
        for package in directory.glob("*.deb"):
            _run(["dpkg", "-x", package, directory])

    return _built("kcat", [], build)


def _java_program(name: str, classes: Sequence[str], jars: Path) -> str:
    sources = [SOURCES / "java" / file for file in classes]

    def build(directory: Path) -> None:
        _run(["javac", "-nowarn", "-Xlint:none", "-cp", f"{jars}/*", "-d", directory, *sources])

    return f"{_built(name, sources, build)}:{jars}/*"


def _jars(name: str, artifacts: list[Artifact]) -> Path:
    try:
        return fetched_jars(name, artifacts)
    except JarsMissing as missing:
        raise ClientMissing(f"{name}: {missing}") from None


def _built(name: str, sources: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """The directory that `build` fills, once. Processes that want the same one wait for each other."""
    made_from = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    directory = cache_directory() / "clients" / f"{name}-{made_from}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.with_suffix(directory.suffix + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / DONE).exists():
            try:
                _build(directory, build)
            except ClientMissing as reason:
                raise ClientMissing(f"{name}: {reason}") from None
            (directory / DONE).touch()
    return directory


def _build(directory: Path, build: Callable[[Path], None]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        try:
            build(directory)
            return
        except ToolMissing:
            raise
        except ClientMissing:
            if attempt == ATTEMPTS:
                raise


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> None:
    tool = str(command[0])
    if shutil.which(tool) is None:
        raise ToolMissing(f"{tool} is not installed")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KLAMM_TEST")}
    try:
        ran = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            cwd=cwd,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise ClientMissing(f"{Path(tool).name} {command[1]} took more than {TIMEOUT_SECONDS} s") from None
    if ran.returncode:
        words = (ran.stderr.strip() or ran.stdout.strip() or "no reason given").splitlines()
        raise ClientMissing(f"{Path(tool).name} {command[1]}: {words[-1]}")


def main() -> int:
    wanted: list[Callable[[], object]] = [
        *(lambda library=library: python(library) for library in PYTHON_LIBRARIES),
        *(lambda version=version: kafka_python_sources(version) for version in SUITES_OF_KAFKA_PYTHON),
        *(lambda version=version: java(version) for version in JAVA_CLIENTS),
        *(lambda version=version: streams(version) for version in STREAMS),
        *(connect, go, javascript, kcat, librdkafka_tests),
    ]
    missing = []
    for install in wanted:
        try:
            install()
        except ClientMissing as reason:
            missing.append(str(reason))
    for line in missing:
        print(f"klamm: no client: {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
