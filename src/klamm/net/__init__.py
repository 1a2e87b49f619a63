"""Listeners and client connections on asyncio, which carry the bytes of klamm.wire."""
