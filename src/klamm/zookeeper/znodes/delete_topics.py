"""/admin/delete_topics/<topic>: marks a topic for deletion. No data. The controller removes it when it is done."""

from __future__ import annotations

from typing import Final

PARENT: Final = "/admin/delete_topics"


def path(topic: str) -> str:
    return f"{PARENT}/{topic}"
