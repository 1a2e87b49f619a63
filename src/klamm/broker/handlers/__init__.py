"""One module per API: authorize, act, answer."""
