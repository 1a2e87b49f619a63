"""Spark pipelines: topics to a Delta lake exactly once, and the audit that proves it."""
