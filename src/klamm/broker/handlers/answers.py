"""What the handlers of several APIs check and answer alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

from klamm.model.errors import ErrorCode, KafkaError


def error_fields(error: KafkaError | None) -> dict[str, Any]:
    """`error_code` and `error_message` of a response, a topic or a partition."""
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}


def check_named_once(topic: str, names: Counter[str]) -> None:
    if names[topic] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic {topic} appears more than once in the request.")
