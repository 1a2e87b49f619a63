"""Broker processes: klamm's own and, in tests, Apache Kafka's. They have the same methods, so a cluster can mix them.

A broker is a properties file, a directory and a process. It keeps its ports when it restarts, because clients look for
it where it was, and the kernel ends it with its owner (`klamm.zookeeper.server.child`).

Each broker has two listeners: CLIENT for clients, and INTERNAL, the only one on which it accepts control requests
(design D6). Both kinds use the same listener names, because a JVM controller looks up each broker's endpoint by the
name of its own inter-broker listener and cannot reach a broker that names it differently.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from klamm.server.server_process import ServerProcess, klamm_command
from klamm.zookeeper.server.child import release_port, reserve_port

HOST: Final = "127.0.0.1"


class BrokerProcess(ServerProcess):
    """`directory` holds server.properties, broker.log and, in data/, the log directory."""

    def __init__(
        self,
        broker_id: int,
        zookeeper: str,
        directory: Path,
        properties: Mapping[str, str | int] | None = None,
        *,
        port: int = 0,
    ) -> None:
        """Port 0 reserves a free port at the first start."""
        super().__init__(f"broker {broker_id}", directory / "broker.log")
        self.id = broker_id
        self.zookeeper = zookeeper
        self.directory = directory
        self.port = port
        self.internal_port = 0
        self.properties: dict[str, str | int] = dict(properties or {})
        """May be changed between two starts."""

    def default_properties(self) -> dict[str, str | int]:
        """Settings for a small and quick broker on one machine."""
        return {
            "broker.id": self.id,
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": 6000,
            "listeners": f"CLIENT://{HOST}:{self.port},INTERNAL://{HOST}:{self.internal_port}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "log.dirs": str(self.data_directory),
        }

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    def launch(self) -> None:
        self.port = self.port or reserve_port()
        self.internal_port = self.internal_port or reserve_port()
        self.data_directory.mkdir(parents=True, exist_ok=True)
        settings = {**self.default_properties(), **self.properties}
        self.properties_file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        super().launch()

    def release_ports(self) -> None:
        release_port(self.port)
        release_port(self.internal_port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        try:
            await self.start()
            yield self
        finally:
            await self.kill()
            self.release_ports()


class KlammBroker(BrokerProcess):
    http_port = 0
    """A reserved port for /metrics. 0 means no HTTP listener."""

    @property
    def modules(self) -> Sequence[str]:
        return ("broker", "http") if self.http_port else ("broker",)

    def command(self) -> Sequence[str]:
        return klamm_command("broker", str(self.properties_file))

    def default_properties(self) -> dict[str, str | int]:
        http = {"klamm.http.listener": f"{HOST}:{self.http_port}"} if self.http_port else {}
        return {**super().default_properties(), **http}

    @property
    def metrics_url(self) -> str:
        assert self.http_port, "the broker was started without HTTP"
        return f"http://{HOST}:{self.http_port}/metrics"

    def release_ports(self) -> None:
        super().release_ports()
        release_port(self.http_port)
