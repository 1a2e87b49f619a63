"""Pure reasoning about a cluster: placement of replicas, reassignment plans, controller history."""
