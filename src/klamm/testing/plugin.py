"""The pytest plugin: `klamm_cluster` is a real three-broker cluster that a test may kill and restart.

    def test_nothing_is_lost(klamm_cluster):
        klamm_cluster.create_topic("orders", partitions=3, replication_factor=3)
        klamm_cluster.kill(klamm_cluster.leader_of("orders", 0))
        ...
        klamm_cluster.wait_until_healthy()

A marker changes the cluster: `@pytest.mark.klamm(brokers=5, network=True, properties={...})`; it takes what
`klamm.testing.running_cluster` takes. `klamm_module_cluster` and `klamm_session_cluster` are shared by all tests of a
module or of a run (with pytest-xdist: of a worker), for tests that leave the cluster as they found it. The report of a
failed test ends with the logs of its brokers.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from klamm.testing.cluster import KlammCluster

FIXTURES: Final = ("klamm_cluster", "klamm_module_cluster", "klamm_session_cluster")
LOG_LINES: Final = 40


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "klamm(brokers, zookeeper, http, network, properties): shape of the klamm_cluster fixture"
    )


@pytest.fixture
def klamm_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    """Three brokers and a ZooKeeper as real processes, which end with the test."""
    marker = request.node.get_closest_marker("klamm")
    yield from _cluster(tmp_path_factory, marker.kwargs if marker else {})


@pytest.fixture(scope="module")
def klamm_module_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KlammCluster]:
    """One cluster for all tests of a module. `pytestmark = pytest.mark.klamm(...)` changes it."""
    marker = request.node.get_closest_marker("klamm")
    yield from _cluster(tmp_path_factory, marker.kwargs if marker else {})


@pytest.fixture(scope="session")
def klamm_session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    """One cluster for the whole run."""
    yield from _cluster(tmp_path_factory, {})


def _cluster(tmp_path_factory: pytest.TempPathFactory, shape: dict[str, Any]) -> Iterator[KlammCluster]:
    from klamm.server import fork_server  # imported late, because the plugin loads in every pytest run

    fork_server.begin("broker")
    from klamm.testing.cluster import running_cluster

    with running_cluster(tmp_path_factory.mktemp("klamm"), **shape) as cluster:
        yield cluster


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """No process stays, not even for the moment until pytest has ended."""
    if (fork_server := sys.modules.get("klamm.server.fork_server")) is not None:
        fork_server.end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the end of every broker's log to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and report.when == "call":
        arguments = getattr(item, "funcargs", {})
        for cluster in (arguments[name] for name in FIXTURES if name in arguments):
            report.sections.extend(_logs(cluster))


def _logs(cluster: KlammCluster) -> Iterator[tuple[str, str]]:
    for broker in cluster.broker_ids:
        state = "running" if broker in cluster.alive else "not running"
        yield f"log of klamm broker {broker} ({state})", "\n".join(cluster.log_text(broker).splitlines()[-LOG_LINES:])
