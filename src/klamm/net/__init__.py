"""asyncio listener and client connections that carry klamm.wire."""
