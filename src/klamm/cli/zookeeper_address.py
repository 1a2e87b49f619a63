"""The ZooKeeper of a cluster: as given, or as its brokers name it in their configuration, klamm's or Apache Kafka's."""

from __future__ import annotations

from klamm.cli.client import connected
from klamm.cli.output import fail


def zookeeper_of(bootstrap: str, given: str) -> str:
    """HOST:PORT or HOST:PORT/chroot."""
    if given:
        return given
    from klamm.client.admin import BROKER

    with connected(bootstrap) as client:
        broker = min(client.cluster.brokers)
        settings = client.run(client.admin.describe_configs(BROKER, str(broker), ["zookeeper.connect"]))
    address = settings.get("zookeeper.connect")
    return address or fail(f"broker {broker} does not say where ZooKeeper is: use --zookeeper HOST:PORT")
