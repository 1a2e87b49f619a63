"""The dashboard: what a Kafka cluster in ZooKeeper mode is doing, why, and what to do about it, in a browser."""
