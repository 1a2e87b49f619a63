"""Times as users write them: an ISO date and time, milliseconds since 1970, or how long ago."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

import typer

_AGO: Final = re.compile(r"-(\d+)(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def milliseconds(text: str, now: float | None = None) -> int:
    """A date and time without a zone is local.

    >>> milliseconds("1700000000000"), milliseconds("-90m", now=10_000.0), milliseconds("1970-01-01T01:00+00:00")
    (1700000000000, 4600000, 3600000)
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return int(((time.time() if now is None else now) - int(ago[1]) * _SECONDS[ago[2]]) * 1000)
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        hint = "use 2026-01-31T12:00, milliseconds since 1970, or -90m (s, m, h, d)"
        raise typer.BadParameter(f"{text!r} is not a time: {hint}") from None
