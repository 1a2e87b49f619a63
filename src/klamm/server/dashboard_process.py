"""`klamm dashboard` as a child process of `klamm up`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from klamm.server.broker_process import HOST
from klamm.server.local_cluster import LocalCluster
from klamm.server.server_process import ServerProcess, klamm_command


class DashboardProcess(ServerProcess):
    """Reads the event files of the brokers, so that changes have causes."""

    def __init__(self, directory: Path, cluster: LocalCluster, port: int) -> None:
        super().__init__("the dashboard", directory / "dashboard.log")
        self._directory = directory.absolute()
        self._cluster = cluster
        self.url = f"http://{HOST}:{port}"
        self._port = port

    def command(self) -> Sequence[str]:
        return klamm_command(
            "dashboard",
            *("--bootstrap-server", self._cluster.bootstrap),
            *("--zookeeper", self._cluster.zookeeper),
            *("--port", str(self._port)),
            *("--events", str(self._directory)),
        )
