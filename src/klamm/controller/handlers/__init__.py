"""One module per kind of event. A handler reads what the event needs, runs a decision, and answers the caller."""
