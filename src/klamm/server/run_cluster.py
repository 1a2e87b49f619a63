"""klamm up: run a cluster in the foreground, and go on where the last one on the same data ended."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from klamm.model.errors import ConfigError
from klamm.server import inspection, runtime
from klamm.server.cluster_directory import ClusterDirectory, ClusterShape, choose_shape, hold_ports, release_ports
from klamm.server.dashboard_process import DashboardProcess
from klamm.server.live_view import view_for
from klamm.server.local_cluster import LocalCluster
from klamm.server.supervision import supervised
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.server.embedded import ZooKeeperNotStarted
from klamm.zookeeper.server.embedded import available as embedded_missing
from klamm.zookeeper.znodes import delete_topics, topic

DEFAULT_ADDRESS: Final = "127.0.0.1:9092"
TOPICS_SECONDS: Final = 10.0
STOPPING_SECONDS: Final = 3.0
"""A stop usually takes less. Then nothing more is said."""
LAST_WORDS_BYTES: Final = 4096
POLL: Final = 0.05


def run_cluster(
    *, brokers: int | None, zookeeper: str, data: Path | None, port: int | None, dashboard_port: int | None
) -> None:
    runtime.run(_run(brokers, zookeeper, data, port, dashboard_port))


async def _run(
    brokers: int | None, zookeeper: str, data: Path | None, port: int | None, dashboard_port: int | None
) -> int:
    started = time.monotonic()
    stop = runtime.stop_on_signals()
    path = data or Path(tempfile.mkdtemp(prefix="klamm-"))
    try:
        with ClusterDirectory(path).locked() as directory:
            former = directory.read()
            available = "memory" if embedded_missing() else "embedded"
            wanted = choose_shape(
                former,
                zookeeper=zookeeper,
                available=available,
                brokers=brokers,
                port=port,
                dashboard_port=dashboard_port,
            )
            shape = await hold_ports(wanted, former, asked=dashboard_port)
            try:
                is_new = former is None and shape.runs_zookeeper
                await _serve(directory, shape, stop, started, kept=data is not None, is_new=is_new)
            finally:
                release_ports(shape.ports())
    except ZooKeeperNotStarted as error:
        raise ConfigError(str(error)) from None
    finally:
        if data is None:
            shutil.rmtree(path, ignore_errors=True)
    return 0


async def _serve(
    directory: ClusterDirectory, shape: ClusterShape, stop: runtime.Stop, started: float, *, kept: bool, is_new: bool
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
    async with _saying_what_it_waits_for(cluster) as stopping, cluster.running():
        dashboard.launch()  # not awaited: the cluster is ready without it
        if not is_new:
            await _until_topics_are_known(cluster)
        banner = _banner(cluster, dashboard.url, directory.path, time.monotonic() - started, kept=kept)
        try:
            async with view_for(cluster, banner).running() as view, supervised(cluster, view.say, dashboard=dashboard):
                await stop.wait()
            _say("stopping ... (Ctrl-C again hurries)")
        finally:
            stopping.set()
            await dashboard.stop()
    _say("stopped")


@asynccontextmanager
async def _saying_what_it_waits_for(cluster: LocalCluster) -> AsyncIterator[asyncio.Event]:
    """From when the event is set, name the brokers that still run, with the last line of their logs."""
    stopping = asyncio.Event()

    async def say() -> None:
        await stopping.wait()
        while True:
            await asyncio.sleep(STOPPING_SECONDS)
            for broker in cluster.brokers.values():
                if broker.alive:
                    _say(f"waiting for {broker.name}: {broker.last_words(broker.log_text(LAST_WORDS_BYTES))}")

    saying = asyncio.create_task(say(), name="say what the end waits for")
    try:
        yield stopping
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


async def _until_topics_are_known(cluster: LocalCluster) -> None:
    """A new controller tells the brokers first who is alive, then of the topics. Without this wait, the first command
    could find none. A damaged topic is never announced, so the wait ends without it."""
    async with inspection.zookeeper(cluster.zookeeper) as zk:
        marked = set(await children_or_none(zk, delete_topics.PARENT) or ())
        topics = {*(await children_or_none(zk, topic.PARENT) or ())} - marked
    deadline = time.monotonic() + TOPICS_SECONDS
    for broker in cluster.brokers:
        while time.monotonic() < deadline:
            metadata = await cluster.metadata(broker)
            if metadata is None or topics <= {known.name for known in metadata.topics}:
                break
            await asyncio.sleep(POLL)


def _banner(cluster: LocalCluster, dashboard: str, data: Path, seconds: float, *, kept: bool) -> list[str]:
    return [
        f"klamm is up after {seconds:.1f} s",
        f"  bootstrap   {cluster.bootstrap}",
        f"  ZooKeeper   {cluster.zookeeper} ({cluster.zookeeper_kind})",
        f"  dashboard   {dashboard}",
        f"  metrics     {'  '.join(broker.metrics_url for broker in cluster.brokers.values())}",
        f"  data        {data}{'' if kept else ' (removed at the end; --data DIR keeps it)'}",
        "Try in another terminal:",
        *_preparation(cluster.bootstrap),
        "  klamm topics create orders --partitions 6 && seq 1000 | klamm produce orders",
        "  klamm chaos kill-leader orders",
        "  klamm topics describe orders",
        "Ctrl-C stops it.",
    ]


def _preparation(bootstrap: str) -> list[str]:
    """What a new terminal must know before the commands work there: where klamm is, and other ports than the usual."""
    called = Path(sys.argv[0])
    scripts = called.absolute().parent if called.name == "klamm" else Path(sys.executable).parent
    found = shutil.which("klamm")
    is_known = found is not None and Path(found).resolve() == (scripts / "klamm").resolve()
    exports = [] if is_known else [f'PATH={shlex.quote(str(scripts))}:"$PATH"']
    if DEFAULT_ADDRESS not in bootstrap.split(","):
        exports.append(f"KLAMM_BOOTSTRAP_SERVER={bootstrap}")
    return [f"  export {' '.join(exports)}"] if exports else []


def _say(line: str) -> None:
    print(line, flush=True)
