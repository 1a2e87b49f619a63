"""Settings in words: where a value comes from, and a number with its unit. Pure."""

from __future__ import annotations

from typing import Final

from klamm.model.wording import duration, size

SOURCES: Final = {
    "TOPIC": "topic",
    "BROKER": "this broker",
    "ALL_BROKERS": "all brokers",
    "FILE": "server.properties",
    "BUILT_IN": "default",
    "LOGGER": "logger",
}
NO_LIMIT: Final = frozenset({-1, 2**63 - 1})
SECONDS: Final = {".ms": 0.001, ".seconds": 1, ".minutes": 60, ".hours": 3_600}


def in_units(key: str, value: str | None) -> str:
    """What a number means, or nothing where the number says it all.

    >>> in_units("retention.ms", "604800000"), in_units("retention.bytes", "-1"), in_units("segment.bytes", "1048576")
    ('7 d', 'no limit', '1.0 MB')
    >>> in_units("log.retention.hours", "168"), in_units("linger.ms", "5"), in_units("num.partitions", "3")
    ('7 d', '', '')
    """
    try:
        number = int(value or "")
    except ValueError:
        return ""
    if key.endswith((".ms", ".bytes", ".messages")) and number in NO_LIMIT:
        return "no limit"
    if key.endswith(".bytes"):
        return size(number) if number >= 1000 else ""
    seconds = next((number * factor for unit, factor in SECONDS.items() if key.endswith(unit)), 0)
    return duration(seconds).removesuffix(" 0 h").removesuffix(" 0 min").removesuffix(" 0 s") if seconds >= 1 else ""
