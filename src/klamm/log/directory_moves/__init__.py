"""Replicas that move between the log directories of one broker (KIP-113)."""
