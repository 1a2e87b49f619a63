"""Steps carried out: committed to ZooKeeper, applied to the context, sent to the brokers."""
