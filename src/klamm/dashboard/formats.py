"""Numbers, sizes and times as people read them. Pure; the templates use them as filters."""

from __future__ import annotations

from datetime import UTC, datetime

from markupsafe import Markup

from klamm.model import wording


def size(value: float | None) -> str:
    """
    >>> size(None), size(999), size(1_500), size(2_000_000_000)
    ('?', '999 B', '1.5 kB', '2.0 GB')
    """
    return "?" if value is None else wording.size(value)


def number(value: int | None) -> str:
    """
    >>> number(1234567), number(None)
    ('1,234,567', '?')
    """
    return "?" if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.25), duration(59), duration(3700), duration(200_000), duration(None)
    ('0.2 s', '59 s', '1 h 1 min', '2 d 7 h', '?')
    """
    if seconds is None:
        return "?"
    return f"{seconds:.1f} s" if seconds < 10 else wording.duration(seconds)


def moment(time_ms: int | None) -> Markup:
    """UTC, with the exact time for programs."""
    if time_ms is None:
        return Markup("")
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return Markup("{} ms").format(time_ms)
    return Markup('<time datetime="{}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def iso(time_ms: int | None) -> str:
    """The exact time, for programs and for those who hover over it.

    >>> iso(1_000)
    '1970-01-01T00:00:01.000+00:00'
    """
    return "" if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def clock(time_ms: int | None, now_ms: int | None = None) -> str:
    """The time of day, with its date if that is not the day of `now_ms`.

    >>> clock(1_000), clock(1_000, 86_399_000), clock(1_000, 86_400_000)
    ('00:00:01.000', '00:00:01.000', '1 Jan 00:00:01')
    """
    if time_ms is None:
        return ""
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    is_today = now_ms is None or at.date() == datetime.fromtimestamp(now_ms / 1000, UTC).date()
    return at.strftime("%H:%M:%S.%f")[:-3] if is_today else f"{at.day} {at:%b %H:%M:%S}"
