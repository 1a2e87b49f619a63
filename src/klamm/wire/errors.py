"""The errors that close a connection without an answer, as in Kafka; and reading error codes from other brokers."""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KlammError


class ProtocolError(KlammError):
    """Bytes that do not decode as a request or response. The message says why and never quotes them."""


class CloseConnection(KlammError):
    """Raised by a handler that cannot answer, such as a failed produce with acks=0."""


def error_of(code: int) -> ErrorCode:
    """The error with this code; UNKNOWN_SERVER_ERROR for a code that only newer brokers know."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
