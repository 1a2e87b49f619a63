"""Words in messages for people."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "partition"), count(3, "partition")
    ('1 partition', '3 partitions')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """
    >>> size(999), size(1_500), size(2_000_000_000), size(-1_500)
    ('999 B', '1.5 kB', '2.0 GB', '-1.5 kB')
    """
    scaled = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(scaled) < 1000:
            return f"{scaled:.0f} B" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1000
    return f"{scaled:.1f} TB"


def duration(seconds: float) -> str:
    """
    >>> duration(4.2), duration(75), duration(7_260), duration(200_000)
    ('4 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    whole = round(seconds)
    for large, small, length, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if whole >= length:
            return f"{whole // length} {large} {whole % length // part} {small}"
    return f"{whole} s"
