"""The partition log in Kafka's file format: segments, indexes, leader epochs, producer state, recovery."""
