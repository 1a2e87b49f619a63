"""The pytest plugin: a real cluster in a test, killed and restarted at will."""
