"""Benchmarks of klamm, also side by side with Apache Kafka or kazoo on the same machine."""
