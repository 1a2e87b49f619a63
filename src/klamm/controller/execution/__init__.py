"""Carries out steps: commits them to ZooKeeper, applies them to the context, sends them to the brokers."""
