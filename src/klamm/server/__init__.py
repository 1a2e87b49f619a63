"""Composition: processes made of a broker, a controller, a ZooKeeper session, listeners and signals."""
