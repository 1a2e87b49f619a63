"""From records to what happened: pure functions over the folded records of all brokers."""
