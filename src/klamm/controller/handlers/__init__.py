"""One module per kind of event: read what it needs, decide, run the steps, answer."""
