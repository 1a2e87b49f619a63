"""A whole cluster in one thread and virtual time, replayed from one seed."""
