"""Log directories and the small files in them: locks, checkpoints, names, removal."""
