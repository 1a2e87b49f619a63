"""Benchmarks of klamm, alone or compared with Apache Kafka or kazoo on the same machine."""
