"""Benchmarks that run beside Apache Kafka or kazoo on the same machine."""
