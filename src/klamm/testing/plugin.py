"""The pytest plugin: the fixture `klamm_cluster` is a real three-broker cluster that a test may kill and restart.

    def test_nothing_is_lost(klamm_cluster):
        klamm_cluster.create_topic("orders", partitions=3, replication_factor=3)
        klamm_cluster.kill(klamm_cluster.leader_of("orders", 0))
        ...
        klamm_cluster.wait_until_healthy()

A marker changes the cluster: `@pytest.mark.klamm(brokers=5, zookeeper="embedded", properties={...})`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from klamm.testing.cluster import KlammCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "klamm(brokers, zookeeper, properties): shape of the klamm_cluster fixture")


@pytest.fixture
def klamm_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KlammCluster]:
    """Three brokers and a ZooKeeper as real processes, which end with the test."""
    from klamm.testing.cluster import running_cluster  # imported late, because the plugin loads in every pytest run

    marker = request.node.get_closest_marker("klamm")
    shape = dict(marker.kwargs) if marker else {}
    with running_cluster(tmp_path_factory.mktemp("klamm"), **shape) as cluster:
        yield cluster
