"""Kafka's protocol as bytes and values: schemas, codecs, record batches, the sans-IO server connection."""
