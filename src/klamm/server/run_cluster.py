"""klamm up: run a cluster in the foreground."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from klamm.server import runtime
from klamm.server.local_cluster import LocalCluster


def run_cluster(*, brokers: int, zookeeper: str, data: Path | None, port: int) -> None:
    runtime.run(_run(brokers, zookeeper, data, port))


async def _run(brokers: int, zookeeper: str, data: Path | None, port: int) -> int:
    started = time.monotonic()
    stop = runtime.stop_on_signals()
    directory = data or Path(tempfile.mkdtemp(prefix="klamm-"))
    replicas = str(min(3, brokers))
    cluster = LocalCluster(
        directory,
        brokers=brokers,
        zookeeper=zookeeper,
        port=port,
        durable=data is not None,
        http=True,
        properties={"default.replication.factor": replicas},
    )
    try:
        async with cluster.running():
            print(f"klamm is up after {time.monotonic() - started:.1f} s")
            print(f"  bootstrap   {cluster.bootstrap}")
            print(f"  ZooKeeper   {cluster.zookeeper} ({cluster.zookeeper_kind})")
            print(f"  metrics     {'  '.join(broker.metrics_url for broker in cluster.brokers.values())}")
            print(f"  data        {directory}{'' if data else ' (removed at the end; --data DIR keeps it)'}")
            print("Ctrl-C stops it.", flush=True)
            await stop.wait()
            print("stopping ...", flush=True)
    finally:
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)
    return 0
