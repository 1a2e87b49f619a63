"""Why a call of the client failed, in one line: what was asked of whom, what happened, and what to do about it."""

from __future__ import annotations

import socket
from typing import Final

from klamm.model.errors import ErrorCode, KafkaError, KlammError


class ClientError(KlammError):
    """A call failed, and repeating it did not help."""


class NoBroker(ClientError):
    """None of the addresses answers."""


PASSING: Final = frozenset(
    {
        *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        *(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE),
        *(ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        *(ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        *(ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LISTENER_NOT_FOUND),
        *(ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE),
    }
)
"""Errors that a new look at the metadata, or a moment, may cure."""


def passes(error: Exception) -> bool:
    if isinstance(error, KafkaError):
        return error.code in PASSING
    return isinstance(error, (OSError, NoBroker))


def reason(error: BaseException) -> str:
    """Why an address could not be reached or did not answer."""
    match error:
        case socket.gaierror():
            return "the name does not resolve"
        case ConnectionRefusedError():
            return "the connection was refused"
        case TimeoutError():
            return str(error) or "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
