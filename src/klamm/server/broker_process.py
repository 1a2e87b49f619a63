"""Broker processes: one set of verbs for klamm's and, in tests, Apache Kafka's, so that any mix makes a cluster.

A broker is a properties file, a directory and a process. It keeps its ports over restarts, since clients look for it
where it was, and ends with its owner whatever happens to that: the kernel sees to it (`klamm.zookeeper.server.child`).

Each has two listeners: CLIENT for everybody, and INTERNAL, on which alone control requests are obeyed (design D6). Both
kinds name them alike. That is not taste: a JVM controller looks up each broker's endpoint by the name of its own
inter-broker listener, and finds no broker that names it otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from klamm.server.child import ServerProcess
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
        """Without a `port` it reserves one when it first starts."""
        super().__init__(f"broker {broker_id}", directory / "broker.log")
        self.id = broker_id
        self.zookeeper = zookeeper
        self.directory = directory
        self.port = port
        self.internal_port = 0
        self.properties: dict[str, str | int] = dict(properties or {})
        """May be changed between two starts."""

    def default_properties(self) -> dict[str, str | int]:
        """Small and quick, for one machine; of the broker's kind where the kinds differ."""
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
    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "klamm", "broker", str(self.properties_file)]
