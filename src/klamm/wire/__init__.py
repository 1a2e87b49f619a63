"""Kafka's protocol: codecs between bytes and values, record batches, and the server side of a connection without IO."""
