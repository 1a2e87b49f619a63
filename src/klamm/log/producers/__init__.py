"""What a partition knows about its producers, in memory and in Kafka's snapshot files."""
