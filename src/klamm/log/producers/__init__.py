"""Producer state of a partition: idempotence and transactions, in memory and in Kafka's snapshot files."""
