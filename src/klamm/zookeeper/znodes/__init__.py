"""One module per kind of znode: its path, the bytes we write, and every version that we accept.

All follow one shape: `path(...)` or `PATH`, `encode(...) -> bytes`, `decode(path, data) -> value`. Bytes are those that
Kafka 2.5 writes, key order included. Malformed content raises ZNodeError with path and reason, never anything else.
Nothing here does IO, except `registration`, which is a procedure on the port. Reference: controller.md section 1.
"""
