"""Log directories: their locks, names and checkpoints, and the removal of deleted files."""
