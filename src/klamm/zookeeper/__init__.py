"""ZooKeeper: jute protocol, bulk client, znode codecs, our own server and the embedded real one."""
