"""The broker: handlers (one module an API), replica manager, partition, fetcher, purgatory."""
