"""Pure reasoning about a cluster: placement of replicas, reading of logs and trees."""
