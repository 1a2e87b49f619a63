"""One module per API: decode, authorize, act, answer."""
