"""What a broker reports about itself: state changes, metrics, and how long the event loop was blocked."""
