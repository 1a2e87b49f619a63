"""The pytest fixture klamm_cluster, and tools for tests against real processes."""
