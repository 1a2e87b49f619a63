"""Compiles `pipelines/java/ConditionalPutLogStore.java` into the jar that klamm ships: run it after a change.

The jar is committed, because a user may have no compiler. A test compiles the source again and compares.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from klamm.pipelines.jars import require_spark, spark_jars
from klamm.pipelines.s3 import LOG_STORE, LOG_STORE_JAR, s3_jars

SOURCE = LOG_STORE_JAR.with_name("ConditionalPutLogStore.java")
CLASS = f"{LOG_STORE.replace('.', '/')}.class"
RELEASE = "17"
_MADE = (2026, 1, 1, 0, 0, 0)
"""The same classes give the same jar."""


def compiled(directory: Path) -> bytes:
    """The class, compiled into this directory."""
    jars = [*spark_jars(), *s3_jars(), *(require_spark() / "jars").glob("hadoop-client-api-*.jar")]
    command = ["javac", "--release", RELEASE, "-d", str(directory), "-cp", os.pathsep.join(map(str, jars)), str(SOURCE)]
    subprocess.run(command, check=True)
    return (directory / CLASS).read_bytes()


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        code = compiled(Path(scratch))
    with zipfile.ZipFile(LOG_STORE_JAR, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(zipfile.ZipInfo(CLASS, _MADE), code)
    print(f"{LOG_STORE_JAR} has {len(code)} bytes of code")
    return 0


if __name__ == "__main__":
    sys.exit(main())
