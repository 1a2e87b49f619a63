"""The directory of a local cluster: who may use it, and what the cluster keeps from one `klamm up` to the next.

`cluster.json` holds the kind of ZooKeeper and every port, so that clients, dashboards and scrapers find the cluster
where it was. A lock keeps a second `klamm up` away before it starts anything.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from klamm.model.errors import ConfigError
from klamm.zookeeper.server.child import hold_port, release_port, reserve_port

SHAPE_FILE: Final = "cluster.json"
LOCK_FILE: Final = ".klamm-up.lock"
DEFAULT_PORT: Final = 9092
DEFAULT_BROKERS: Final = 3
OWN_ZOOKEEPERS: Final = ("embedded", "memory")
ZOOKEEPER_PORT: Final = 2181
DASHBOARD: Final = "the dashboard"
DASHBOARD_PORT: Final = 8080
INTERNAL_OFFSET: Final = 10_000
HTTP_OFFSET: Final = 20_000
LEFTOVER_SECONDS: Final = 3.0
"""How long ports may still be taken by processes of a `klamm up` that was killed a moment ago."""
POLL: Final = 0.05


class BrokerPorts(NamedTuple):
    port: int
    """For clients."""
    internal_port: int
    """For other brokers."""
    http_port: int


@dataclass
class ClusterShape:
    zookeeper: str
    """`embedded`, `memory`, or the address of the user's own."""
    zookeeper_port: int
    brokers: dict[int, BrokerPorts] = field(default_factory=dict)
    dashboard_port: int = 0

    @property
    def runs_zookeeper(self) -> bool:
        return self.zookeeper in OWN_ZOOKEEPERS

    def ports(self) -> dict[int, str]:
        """Every port with its use."""
        return {self.dashboard_port: DASHBOARD} | self.ports_without_dashboard()

    def ports_without_dashboard(self) -> dict[int, str]:
        own = {self.zookeeper_port: "ZooKeeper"} if self.runs_zookeeper else {}
        for broker, ports in self.brokers.items():
            for port, use in zip(ports, ("", "'s internal listener", "'s metrics"), strict=True):
                own[port] = f"broker {broker}{use}"
        return own


class ClusterDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[ClusterDirectory]:
        """Raises ConfigError if the directory cannot be used, or if a cluster runs on it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"--data {self.path}: {error.strerror}") from None
        try:
            self._lock(descriptor)
            yield self
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise ConfigError(f"--data {self.path}: {error.strerror}") from None
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(f"--data {self.path}: a cluster already runs on this data, in process {owner}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def read(self) -> ClusterShape | None:
        """The shape of the last run; None for a new directory."""
        path = self.path / SHAPE_FILE
        try:
            document = orjson.loads(path.read_bytes())
            brokers = {int(broker): BrokerPorts(**ports) for broker, ports in document["brokers"].items()}
            dashboard = int(document.get("dashboard_port", 0))  # directories of klamm 0.1 do not have it
            return ClusterShape(document["zookeeper"], document["zookeeper_port"], brokers, dashboard)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is unreadable ({error}): remove it to choose the ports anew") from None

    def write(self, shape: ClusterShape) -> None:
        document: dict[str, Any] = {
            "zookeeper": shape.zookeeper,
            "zookeeper_port": shape.zookeeper_port,
            "dashboard_port": shape.dashboard_port,
            "brokers": {str(broker): ports._asdict() for broker, ports in shape.brokers.items()},
        }
        path = self.path / SHAPE_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        temporary.replace(path)


def choose_shape(
    former: ClusterShape | None,
    *,
    zookeeper: str,
    available: str,
    brokers: int | None,
    port: int | None,
    dashboard_port: int | None,
) -> ClusterShape:
    """What was asked for; else what the directory had; else the defaults. `available` is the ZooKeeper to use if
    neither names one. Raises ConfigError for another kind of ZooKeeper than the data was made with, and for a port
    with two uses."""
    if former is not None and zookeeper and zookeeper != former.zookeeper:
        raise ConfigError(
            f"this data was made with --zookeeper {former.zookeeper}, which knows its topics: "
            f"use that, or another directory"
        )
    kept = former if port is None else None
    first = DEFAULT_PORT if port is None else port
    count = brokers or (len(former.brokers) if former else DEFAULT_BROKERS)
    shape = ClusterShape(zookeeper or (former.zookeeper if former else available), 0)
    for broker in range(1, count + 1):
        known = kept.brokers.get(broker) if kept else None
        shape.brokers[broker] = known or _default_ports(first, broker - 1)
    of_brokers = shape.ports_without_dashboard()
    defaults = (ZOOKEEPER_PORT, DASHBOARD_PORT) if first else (0, 0)
    free = [0 if default in of_brokers else default for default in defaults]
    shape.zookeeper_port, shape.dashboard_port = (kept.zookeeper_port, kept.dashboard_port) if kept else free
    if dashboard_port is not None:
        if dashboard_port and (use := shape.ports_without_dashboard().get(dashboard_port)):
            raise ConfigError(f"--dashboard-port {dashboard_port} is the port for {use}")
        shape.dashboard_port = dashboard_port
    return shape


def _default_ports(first: int, number: int) -> BrokerPorts:
    if first == 0:
        return BrokerPorts(0, 0, 0)
    client = first + number
    return BrokerPorts(client, _offset(client, INTERNAL_OFFSET), _offset(client, HTTP_OFFSET))


def _offset(port: int, offset: int) -> int:
    """0, for any free port, where the default would be no port."""
    return port + offset if port + offset < 1 << 16 else 0


async def hold_ports(shape: ClusterShape, former: ClusterShape | None, asked: int | None = None) -> ClusterShape:
    """Reserve every port and return the shape with the ports that were reserved.

    A taken port for clients, one that was `asked` for, or one that the directory had before, raises ConfigError with
    its use. A default that is taken by another program is replaced by a free port.
    """
    promised = {asked, *(former.ports() if former is not None else ())}
    promised |= {ports.port for ports in shape.brokers.values()}
    uses = shape.ports()
    deadline = asyncio.get_running_loop().time() + LEFTOVER_SECONDS
    free: dict[int, int] = {}
    for port in uses:
        while port and not hold_port(port):
            if port not in promised:
                break
            if asyncio.get_running_loop().time() > deadline:
                release_ports(free.values())
                option = "--dashboard-port" if uses[port] == DASHBOARD else "--port"
                raise ConfigError(
                    f"port {port} for {uses[port]} is taken: {option} chooses another, {option} 0 any free"
                )
            await asyncio.sleep(POLL)
        else:
            free[port] = port

    def held(port: int) -> int:
        return free.get(port) or reserve_port()

    return ClusterShape(
        shape.zookeeper,
        held(shape.zookeeper_port) if shape.runs_zookeeper else 0,
        {broker: BrokerPorts(*map(held, ports)) for broker, ports in shape.brokers.items()},
        held(shape.dashboard_port),
    )


def release_ports(ports: Iterable[int]) -> None:
    for port in ports:
        release_port(port)
