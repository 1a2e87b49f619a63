"""The klamm command: a client of the cluster."""
