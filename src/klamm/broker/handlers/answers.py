"""Pieces that the answers of several APIs have in common."""

from __future__ import annotations

from typing import Any

from klamm.model.errors import ErrorCode, KafkaError


def error_fields(error: KafkaError | None) -> dict[str, Any]:
    """`error_code` and `error_message` of a response, a topic or a partition."""
    if error is None:
        return {"error_code": ErrorCode.NONE, "error_message": None}
    return {"error_code": error.code, "error_message": error.message}
