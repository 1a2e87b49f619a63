"""Apache Kafka's jars in a cache outside the repository. Maven fetches them once, or else the Ivy that PySpark ships.

`python -m klamm.testing.kafka_jars` fetches all versions that the tests use, so that no test waits for the network. A
version's directory is renamed into place as a whole: if it exists, it is complete.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

VERSIONS = ("2.5.1", "3.9.1")
_FETCH_TIMEOUT = 900
_ATTEMPTS = 2
"""A registry may fail for a moment."""


class Artifact(NamedTuple):
    group: str
    name: str
    version: str


class JarsMissing(RuntimeError):
    """The message says in one line what was tried and what to install."""


def _artifacts(version: str) -> list[Artifact]:
    """The broker, its tools and their logging binding, which depends on the version."""
    binding = ("slf4j-log4j12", "1.7.30") if version.startswith("2.") else ("slf4j-reload4j", "1.7.36")
    return [
        Artifact("org.apache.kafka", "kafka_2.13", version),
        Artifact("org.apache.kafka", "kafka-tools", version),
        Artifact("org.slf4j", *binding),
    ]


def cache_directory() -> Path:
    configured = os.environ.get("KLAMM_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "klamm"


def kafka_jars(version: str) -> Path:
    """The directory with all jars of a version, fetched if necessary. Raises JarsMissing."""
    return fetched_jars(f"apache-kafka-{version}", _artifacts(version))


def fetched_jars(name: str, artifacts: list[Artifact]) -> Path:
    """A directory of the cache with these artifacts and all that they need. Raises JarsMissing."""
    target = cache_directory() / name
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _fetch_into(target, artifacts)
                break
            except JarsMissing:
                if attempt == _ATTEMPTS:
                    raise
    return target


def _fetch_into(target: Path, artifacts: list[Artifact]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".fetching-{target.name}-", dir=target.parent) as work:
        fetched = _fetch(artifacts, Path(work))
        try:
            fetched.rename(target)
        except OSError:
            if not target.is_dir():  # else another process has fetched the same jars in the meantime
                raise


def _fetch(artifacts: list[Artifact], work: Path) -> Path:
    jars = work / "jars"
    jars.mkdir()
    if maven := shutil.which("mvn"):
        command = _maven(maven, artifacts, work, jars)
    elif (java := shutil.which("java")) and (ivy := _ivy_jar()):
        command = _ivy(java, ivy, artifacts, work, jars)
    else:
        raise JarsMissing("cannot fetch Apache Kafka: install Maven, or Java 17 and klamm[spark] (PySpark ships Ivy)")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, cwd=work)
    except subprocess.TimeoutExpired:
        raise JarsMissing(f"{Path(command[0]).name} fetched Apache Kafka for more than {_FETCH_TIMEOUT} s") from None
    if result.returncode or not list(jars.glob(f"{artifacts[0].name}-*.jar")):
        words = [
            line for line in (result.stdout + result.stderr).splitlines() if "ERROR" in line or "UNRESOLVED" in line
        ]
        raise JarsMissing(
            f"cannot fetch Apache Kafka with {Path(command[0]).name}: {(words or ['no reason given'])[0]}"
        )
    return jars


def _maven(maven: str, artifacts: list[Artifact], work: Path, jars: Path) -> list[str]:
    wanted = "".join(
        f"<dependency><groupId>{a.group}</groupId><artifactId>{a.name}</artifactId><version>{a.version}</version></dependency>"
        for a in artifacts
    )
    (work / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>klamm</groupId><artifactId>apache-kafka</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    return [maven, "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]


def _ivy(java: str, ivy: Path, artifacts: list[Artifact], work: Path, jars: Path) -> list[str]:
    wanted = "".join(f'<dependency org="{a.group}" name="{a.name}" rev="{a.version}"/>' for a in artifacts)
    (work / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="klamm" module="apache-kafka"/>'
        f'<configurations defaultconfmapping="default->default"><conf name="default"/></configurations>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    pattern = f"{jars}/[artifact]-[revision](-[classifier]).[ext]"
    cache = str(work / "ivy-cache")
    return [java, "-jar", str(ivy), "-cache", cache, "-ivy", str(work / "ivy.xml"), "-retrieve", pattern]


def _ivy_jar() -> Path | None:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return None
    return next(iter(sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))), None)


def main() -> int:
    for version in VERSIONS:
        try:
            kafka_jars(version)
        except JarsMissing as missing:
            print(missing, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
