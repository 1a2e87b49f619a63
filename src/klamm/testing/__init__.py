"""Real clusters in tests: `running_cluster`, and the fixtures of the pytest plugin. Imported only when used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.testing.async_cluster import AsyncKlammCluster as AsyncKlammCluster
    from klamm.testing.async_cluster import ClusterError as ClusterError
    from klamm.testing.cluster import KlammCluster as KlammCluster
    from klamm.testing.cluster import running_cluster as running_cluster
    from klamm.testing.producer_history import ProducerHistory as ProducerHistory

_HOMES = {
    "AsyncKlammCluster": "async_cluster",
    "ClusterError": "async_cluster",
    "KlammCluster": "cluster",
    "ProducerHistory": "producer_history",
    "running_cluster": "cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
