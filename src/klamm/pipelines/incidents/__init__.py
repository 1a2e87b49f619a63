"""Incident reports: what happened in a cluster, from the logs of its brokers (Apache Kafka 2.5 to 3.9, and klamm)."""
