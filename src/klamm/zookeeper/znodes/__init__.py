"""One module per kind of znode: its path, the bytes that klamm writes, and all versions that it reads.

Each module has `path(...)` or `PATH`, `encode(...) -> bytes` and `decode(path, data) -> value`. The bytes are those of
Kafka 2.5 (kafka.zk.ZkData), including the order of the keys. Malformed content raises ZNodeError with path and reason,
and no other exception. Nothing here does IO, except `registration`, which is a procedure on the ZooKeeper port.
"""
