"""The seven jars that Spark needs besides its own, resolved once from Maven Central into klamm's cache.

Ivy runs only on first use; afterwards the jars are put on the class path by name, so that a start needs no network and
prints nothing. The versions match the connector's Spark version, because it uses Spark's internals. The other jars that
Ivy would fetch (Hadoop's client, compressors, logging) are part of PySpark in the same versions and are left out.

`python -m klamm.pipelines.jars` fetches them ahead of time, and makes the class archive for a fast start. With `--s3`
it also fetches what s3a lakes need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from klamm.pipelines.lake_state import LakeError

SPARK_VERSION = "4.0.0"
PACKAGES = (
    f"io.delta:delta-spark_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-avro_2.13:{SPARK_VERSION}",
)
JARS = (
    f"io.delta_delta-spark_2.13-{SPARK_VERSION}.jar",
    f"io.delta_delta-storage-{SPARK_VERSION}.jar",
    "org.apache.commons_commons-pool2-2.12.0.jar",
    "org.apache.kafka_kafka-clients-3.9.0.jar",
    f"org.apache.spark_spark-avro_2.13-{SPARK_VERSION}.jar",
    f"org.apache.spark_spark-sql-kafka-0-10_2.13-{SPARK_VERSION}.jar",
    f"org.apache.spark_spark-token-provider-kafka-0-10_2.13-{SPARK_VERSION}.jar",
)
_IN_PYSPARK_ALREADY = (
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-client-api",
    "org.scala-lang.modules:scala-parallel-collections_2.13",
    "org.antlr:antlr4-runtime",
    "org.lz4:lz4-java",
    "org.xerial.snappy:snappy-java",
    "org.slf4j:slf4j-api",
    "org.tukaani:xz",
    "com.google.code.findbugs:jsr305",
)
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" root="https://repo1.maven.org/maven2/"/></resolvers>
</ivysettings>
"""
_RESOLVE_SECONDS_MAX = 600
_ATTEMPTS = 2
"""Maven Central may fail for a moment."""


def require_spark() -> Path:
    """PySpark's home. Raises LakeError with what is missing, before anything is started."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or find_spec("delta") is None:
        raise LakeError("this command needs PySpark: pip install 'klamm[spark]'")
    java_command()
    return Path(spec.origin).parent


def java_command() -> Path:
    """The `java` that Spark starts. Raises LakeError without one."""
    java_home = os.environ.get("JAVA_HOME")
    java = Path(java_home, "bin", "java") if java_home else Path(shutil.which("java") or "")
    if not java.is_file() or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={java_home} has no bin/java" if java_home else "no java on PATH and JAVA_HOME is not set"
        raise LakeError(f"this command needs Java 17 or later: {where}")
    return java


def cache_directory() -> Path:
    base = os.environ.get("KLAMM_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "klamm") / f"spark-jars-{SPARK_VERSION}"


def spark_jars() -> list[Path]:
    """The jars, resolved first if the cache does not have them all."""
    directory = cache_directory()
    jars = [directory / name for name in JARS]
    if not all(jar.is_file() for jar in jars):
        _resolve(require_spark(), directory)
    return jars


def _resolve(spark_home: Path, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            # on the same file system, so that a jar enters the cache by rename: complete or not at all
            with tempfile.TemporaryDirectory(prefix=".resolve-", dir=directory) as scratch:
                try:
                    fetched = _run_ivy(spark_home, Path(scratch))
                except LakeError:
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                for name in JARS:
                    os.replace(fetched / name, directory / name)
                return
    except OSError as e:
        raise LakeError(f"cannot write Spark's jars to {directory}: {e}") from e


def _run_ivy(spark_home: Path, scratch: Path) -> Path:
    """Submit an empty Spark application: the launcher resolves its packages before it runs."""
    settings, application = scratch / "ivysettings.xml", scratch / "nothing.py"
    settings.write_text(_IVY_SETTINGS, encoding="utf-8")
    application.write_text("", encoding="utf-8")
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--conf", f"spark.jars.ivy={scratch / 'ivy'}"),
        *("--conf", f"spark.jars.ivySettings={settings}"),
        *("--conf", f"spark.local.dir={scratch}"),
        *("--packages", ",".join(PACKAGES)),
        *("--exclude-packages", ",".join(_IN_PYSPARK_ALREADY)),
        str(application),
    ]
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_RESOLVE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise LakeError(f"fetching Spark's jars from Maven Central took more than {_RESOLVE_SECONDS_MAX} s") from e
    fetched = scratch / "ivy" / "jars"
    missing = [name for name in JARS if not (fetched / name).is_file()]
    if missing:
        raise LakeError(
            f"cannot resolve Spark's jars from Maven Central (missing {', '.join(missing)}): {_reason(done.stderr)}"
        )
    return fetched


def _reason(output: str) -> str:
    """The line of the resolution report that says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("Host ", "unresolved dependency", "UNRESOLVED", "SERVER ERROR", "Exception"):
        for line in lines:
            if mark in line:
                return line.strip(": ")[:200]
    return lines[-1][:200] if lines else "no output"


def main() -> int:
    from klamm.pipelines.class_archive import archive_path, java_build, make_archive
    from klamm.pipelines.s3 import s3_jars

    try:
        if "--s3" in sys.argv[1:]:
            s3_jars()
        archive = archive_path(java_build(), spark_jars(), require_spark())
    except LakeError as e:
        print(f"klamm: {e}", file=sys.stderr)
        return 1
    try:
        make_archive(archive)
    except LakeError as e:
        print(f"klamm: {e}; Spark will start slower", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
