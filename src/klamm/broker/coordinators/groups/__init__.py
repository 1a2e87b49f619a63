"""The group coordinator: members, rebalances and committed offsets, on `__consumer_offsets`."""
