"""What ends a connection. Neither is answered: the other side sees its connection close, as with Kafka (broker 8.4)."""

from __future__ import annotations

from klamm.model.errors import KlammError


class ProtocolError(KlammError):
    """Bytes that are no request or response we understand. The message says why and never quotes them."""


class CloseConnection(KlammError):
    """Raised by a handler that has no answer to give, such as a failed produce with acks=0."""
