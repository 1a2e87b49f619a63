"""Carries steps out: commits them to ZooKeeper, applies them to the context, sends them to the brokers."""
