"""klamm up: run a cluster in the foreground, and go on where the last one on the same data ended."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from klamm.model.errors import ConfigError
from klamm.server import runtime
from klamm.server.cluster_directory import ClusterDirectory, ClusterShape, choose_shape, hold_ports, release_ports
from klamm.server.dashboard_process import DashboardProcess
from klamm.server.live_view import view_for
from klamm.server.local_cluster import LocalCluster
from klamm.server.supervision import supervised
from klamm.zookeeper.server.embedded import ZooKeeperNotStarted
from klamm.zookeeper.server.embedded import available as embedded_missing

DEFAULT_ADDRESS: Final = "127.0.0.1:9092"


def run_cluster(*, brokers: int | None, zookeeper: str, data: Path | None, port: int | None) -> None:
    runtime.run(_run(brokers, zookeeper, data, port))


async def _run(brokers: int | None, zookeeper: str, data: Path | None, port: int | None) -> int:
    started = time.monotonic()
    stop = runtime.stop_on_signals()
    path = data or Path(tempfile.mkdtemp(prefix="klamm-"))
    try:
        with ClusterDirectory(path).locked() as directory:
            former = directory.read()
            available = "memory" if embedded_missing() else "embedded"
            wanted = choose_shape(former, zookeeper=zookeeper, available=available, brokers=brokers, port=port)
            shape = await hold_ports(wanted, former)
            try:
                await _serve(directory, shape, stop, started, kept=data is not None)
            finally:
                release_ports(shape.ports())
    except ZooKeeperNotStarted as error:
        raise ConfigError(str(error)) from None
    finally:
        if data is None:
            shutil.rmtree(path, ignore_errors=True)
    return 0


async def _serve(
    directory: ClusterDirectory, shape: ClusterShape, stop: runtime.Stop, started: float, *, kept: bool
) -> None:
    directory.write(shape)
    cluster = LocalCluster(
        directory.path,
        shape=shape,
        durable=kept,
        journal=True,
        properties={"default.replication.factor": str(min(3, len(shape.brokers)))},
    )
    dashboard = DashboardProcess(directory.path, cluster, shape.dashboard_port)
    stop.hurry = lambda: asyncio.ensure_future(asyncio.gather(dashboard.kill(), cluster.kill_all()))
    async with cluster.running():
        dashboard.launch()  # not awaited: the cluster is ready without it
        banner = _banner(cluster, dashboard.url, directory.path, time.monotonic() - started, kept=kept)
        try:
            async with view_for(cluster, banner).running() as view, supervised(cluster, view.say, dashboard=dashboard):
                await stop.wait()
            _say("stopping ... (Ctrl-C again hurries)")
        finally:
            await dashboard.stop()
    _say("stopped")


def _banner(cluster: LocalCluster, dashboard: str, data: Path, seconds: float, *, kept: bool) -> list[str]:
    at = "" if DEFAULT_ADDRESS in cluster.bootstrap.split(",") else f" --bootstrap-server {cluster.bootstrap}"
    return [
        f"klamm is up after {seconds:.1f} s",
        f"  bootstrap   {cluster.bootstrap}",
        f"  ZooKeeper   {cluster.zookeeper} ({cluster.zookeeper_kind})",
        f"  dashboard   {dashboard}",
        f"  metrics     {'  '.join(broker.metrics_url for broker in cluster.brokers.values())}",
        f"  data        {data}{'' if kept else ' (removed at the end; --data DIR keeps it)'}",
        "Try in another terminal:",
        f"  klamm topics create orders --partitions 6{at} && seq 1000 | klamm produce orders{at}",
        f"  klamm chaos kill-leader orders{at}",
        f"  klamm topics describe orders{at}",
        "Ctrl-C stops it.",
    ]


def _say(line: str) -> None:
    print(line, flush=True)
