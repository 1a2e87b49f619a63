"""Composition: one process made of a broker, a controller, ZooKeeper, listeners and signals."""
