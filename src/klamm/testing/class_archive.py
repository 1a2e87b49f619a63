"""Makes archives of the classes that a broker of Apache Kafka loads, so that brokers and tools start faster.

An archive fits one build of Java and the jars of one version. `python -m klamm.testing.class_archive` makes those that
are missing: the JVM of a broker dumps its classes when it ends. Without an archive everything works, slower.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from klamm.server.local_cluster import OwnZooKeeper
from klamm.server.server_process import ServerNotStarted
from klamm.testing.apache_kafka import ApacheKafkaBroker, class_archive
from klamm.testing.kafka_jars import VERSIONS

_DUMP_SECONDS_MAX: Final = 120.0


class _DumpingBroker(ApacheKafkaBroker):
    def command(self) -> Sequence[str]:
        java, *rest = super().command()
        return [java, f"-XX:ArchiveClassesAtExit={self.directory / 'classes.jsa'}", *rest]


async def make_archive(version: str) -> None:
    """Raises ServerNotStarted."""
    archive = class_archive(version)
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=archive.parent) as scratch:
        zookeeper = OwnZooKeeper(Path(scratch))
        try:
            await zookeeper.start()
            broker = _DumpingBroker(version, 1, f"127.0.0.1:{zookeeper.port}", Path(scratch, "broker"), archived=False)
            broker.properties["controlled.shutdown.enable"] = "false"
            async with broker.running():
                await broker.stop(_DUMP_SECONDS_MAX)
            os.replace(Path(scratch, "broker", "classes.jsa"), archive)
        finally:
            await zookeeper.kill()


def main() -> int:
    for version in VERSIONS:
        if class_archive(version).is_file():
            continue
        try:
            asyncio.run(make_archive(version))
        except (ServerNotStarted, OSError) as error:
            print(f"no class archive for Apache Kafka {version}, so its tests are slower: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
