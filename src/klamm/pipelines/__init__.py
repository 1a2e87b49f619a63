"""Spark pipelines: write topics to a Delta lake exactly once, and audit the result."""
