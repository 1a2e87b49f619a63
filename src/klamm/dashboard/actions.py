"""Everything that the dashboard asks of the cluster for a visitor. Each action uses connections of its own and first
checks that the cluster is still the one that the page showed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.dashboard.settings import DashboardSettings
from klamm.model.errors import KlammError, ZNodeError
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.znodes import cluster_id

TIMEOUT: Final = 10.0
SESSION_TIMEOUT_MS: Final = 10_000


class ActionRefused(KlammError):
    """The action was not carried out; the message says why."""


class ClusterAccess:
    def __init__(self, settings: DashboardSettings) -> None:
        self._settings = settings

    @asynccontextmanager
    async def brokers(self, expected: str | None = None, timeout: float = TIMEOUT) -> AsyncIterator[ClusterClient]:
        """Raises NoBroker. With `expected`, raises ActionRefused if this is another cluster."""
        cluster = ClusterClient(addresses(self._settings.bootstrap), client_id="klamm-dashboard", timeout=timeout)
        async with cluster.running():
            if expected is not None:
                _same(expected, cluster.cluster_id or "", "the brokers")
            yield cluster

    @asynccontextmanager
    async def zookeeper(self, expected: str | None = None) -> AsyncIterator[ZooKeeperClient]:
        """Raises ConnectionLoss. With `expected`, raises ActionRefused if this is another cluster."""
        zk = ZooKeeperClient(AsyncioNetwork(), SystemClock(), Random(), self._settings.zookeeper, SESSION_TIMEOUT_MS)
        async with zk.running():
            if expected is not None:
                (node,) = await zk.get_many([cluster_id.PATH])
                try:
                    found = cluster_id.decode(cluster_id.PATH, node.data if node is not None else None)
                except ZNodeError as error:
                    raise ActionRefused(f"nothing was done: {error}") from None
                _same(expected, found, "ZooKeeper")
            yield zk


def _same(expected: str, found: str, where: str) -> None:
    if found != expected:
        raise ActionRefused(f"nothing was done: the page showed cluster {expected}, {where} belong to cluster {found}")
