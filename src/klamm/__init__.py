"""klamm: a Kafka-compatible cluster around the ZooKeeper-based Kafka controller. docs/architecture.md is the map."""

__version__ = "0.1.0"
