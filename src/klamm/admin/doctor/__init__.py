"""Looks over the ZooKeeper tree of any Kafka cluster and says what is wrong, with evidence and a cure. Pure."""
