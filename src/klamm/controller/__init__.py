"""The controller: events, queue, context (columns), states, elections, membership, topics, channels."""
