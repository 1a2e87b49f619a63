"""Which brokers are alive: a kept connection to each, and the rules that make a broker suspect."""
