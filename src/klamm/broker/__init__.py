"""The broker: handlers (one module per API), replica manager, partition, fetcher, purgatory."""
