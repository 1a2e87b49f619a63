"""What a broker tells about itself: the state-change writer and the metrics registry."""
