"""From the load of a cluster to a plan that evens it out: pure and repeatable, with a reason if it does nothing."""
