"""/admin/delete_topics/<topic>: a topic that somebody wants deleted. No data; removed by the controller when done."""

from __future__ import annotations

from typing import Final

PARENT: Final = "/admin/delete_topics"


def path(topic: str) -> str:
    return f"{PARENT}/{topic}"
