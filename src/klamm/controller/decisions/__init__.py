"""Pure decisions: generators of steps over the context. No await, no clock, no randomness, no IO."""
