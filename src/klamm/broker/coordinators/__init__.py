"""The coordinators of groups and transactions, each on the log of an internal topic (design D20)."""
