"""Values that every part speaks: ids, epochs, partition state, errors, configuration, events; and the ports."""
