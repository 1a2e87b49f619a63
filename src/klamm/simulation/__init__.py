"""Runs a whole cluster in one thread and in virtual time, determined by one seed."""
