"""The shape of a local cluster: what was asked for, what the directory had, and the defaults."""

from __future__ import annotations

import socket
from pathlib import Path

import orjson
import pytest

from klamm.model.errors import ConfigError
from klamm.server.cluster_directory import (
    BrokerPorts,
    ClusterDirectory,
    ClusterShape,
    choose_shape,
    hold_ports,
    release_ports,
)

FORMER = ClusterShape("memory", 2999, {1: BrokerPorts(1, 2, 3), 2: BrokerPorts(4, 5, 6)}, 7)


def chosen(
    former: ClusterShape | None,
    *,
    zookeeper: str = "",
    brokers: int | None = None,
    port: int | None = None,
    dashboard: int | None = None,
) -> ClusterShape:
    return choose_shape(
        former, zookeeper=zookeeper, available="embedded", brokers=brokers, port=port, dashboard_port=dashboard
    )


def test_defaults_are_the_documented_ones() -> None:
    assert chosen(None) == ClusterShape(
        "embedded",
        2181,
        {
            1: BrokerPorts(9092, 19092, 29092),
            2: BrokerPorts(9093, 19093, 29093),
            3: BrokerPorts(9094, 19094, 29094),
        },
        8080,
    )
    assert chosen(None, port=0, brokers=1) == ClusterShape("embedded", 0, {1: BrokerPorts(0, 0, 0)}, 0)
    assert chosen(None, port=60_000, brokers=1).brokers == {1: BrokerPorts(60_000, 0, 0)}


def test_a_directory_keeps_its_shape() -> None:
    assert chosen(FORMER) == FORMER
    grown = chosen(FORMER, brokers=3)
    assert grown.brokers == {**FORMER.brokers, 3: BrokerPorts(9094, 19094, 29094)}
    moved = chosen(FORMER, port=7000)
    assert (moved.zookeeper, moved.brokers[2]) == ("memory", BrokerPorts(7001, 17001, 27001))
    with pytest.raises(ConfigError, match="this data was made with --zookeeper memory"):
        chosen(FORMER, zookeeper="embedded")


def test_the_port_of_the_dashboard() -> None:
    assert chosen(None, dashboard=7000).dashboard_port == 7000
    assert chosen(FORMER, dashboard=7000).dashboard_port == 7000
    assert chosen(FORMER, dashboard=0).dashboard_port == 0, "any free one"
    assert chosen(FORMER, port=7000).dashboard_port == 8080
    with pytest.raises(ConfigError, match=r"^--dashboard-port 9093 is the port for broker 2$"):
        chosen(None, dashboard=9093)


def test_a_default_gives_way_to_a_broker() -> None:
    assert chosen(None, port=8079, brokers=2).dashboard_port == 0
    assert chosen(None, port=2180, brokers=2).zookeeper_port == 0


def test_the_file_keeps_everything_and_says_when_it_is_unreadable(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    assert directory.read() is None
    directory.write(FORMER)
    assert directory.read() == FORMER
    older = orjson.loads((tmp_path / "cluster.json").read_bytes())
    del older["dashboard_port"]
    (tmp_path / "cluster.json").write_bytes(orjson.dumps(older))
    read = directory.read()
    assert read is not None and read.dashboard_port == 0, "made before there was a dashboard"
    (tmp_path / "cluster.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"cluster.json is unreadable .*: remove it"):
        directory.read()


def test_the_lock_names_its_owner(tmp_path: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"already runs on this data, in process \d+")
    with ClusterDirectory(tmp_path).locked(), refused, ClusterDirectory(tmp_path).locked():
        pass
    with ClusterDirectory(tmp_path).locked():
        pass


async def test_a_default_gives_way_and_a_promise_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.server.cluster_directory.LEFTOVER_SECONDS", 0.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        default = ClusterShape("memory", taken, {1: BrokerPorts(0, taken, 0)})
        held = await hold_ports(default, None)
        assert taken not in held.ports() and len(held.ports()) == 5
        release_ports(held.ports())
        with pytest.raises(ConfigError, match=f"port {taken} for broker 1's internal listener is taken"):
            await hold_ports(default, default)
        with pytest.raises(ConfigError, match=f"port {taken} for broker 1 is taken"):
            await hold_ports(ClusterShape("memory", 0, {1: BrokerPorts(taken, 0, 0)}), None)
        at_the_dashboard = ClusterShape("memory", 0, {}, taken)
        moved = await hold_ports(at_the_dashboard, None)
        assert moved.dashboard_port != taken
        release_ports(moved.ports())
        with pytest.raises(ConfigError, match=f"port {taken} for the dashboard is taken: --dashboard-port chooses"):
            await hold_ports(at_the_dashboard, None, asked=taken)
