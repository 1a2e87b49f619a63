"""Values that all packages share (ids, epochs, partition state, errors, configuration, events), and the ports."""
