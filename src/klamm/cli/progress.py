"""Progress of what takes time: done, rate, time left, and what it waits for. Only on a terminal, on stderr."""

from __future__ import annotations

import sys
import time

from klamm.model.wording import duration, size


class Progress:
    """One line that is rewritten. Into a pipe or a file it writes nothing."""

    def __init__(self, noun: str, total: int | None = None, *, in_bytes: bool = False) -> None:
        self._noun = noun
        self._total = total
        self._in_bytes = in_bytes
        self._began = time.monotonic()
        self._is_shown = sys.stderr.isatty()
        self._width = 0

    def at(self, done: int, waits_for: str = "") -> None:
        if self._is_shown:
            line = progress_line(
                self._noun, done, self._total, time.monotonic() - self._began, waits_for, in_bytes=self._in_bytes
            )
            sys.stderr.write("\r" + line.ljust(self._width))
            sys.stderr.flush()
            self._width = len(line)

    def end(self) -> None:
        if self._is_shown and self._width:
            sys.stderr.write("\n")
            self._width = 0


def progress_line(
    noun: str, done: int, total: int | None, seconds: float, waits_for: str = "", *, in_bytes: bool = False
) -> str:
    """
    >>> progress_line("records", 50, 200, 10.0)
    '50 of 200 records, 5.0/s, 30 s left'
    >>> progress_line("bytes", 5_000_000, None, 10.0, "broker 3", in_bytes=True)
    '5.0 MB, 500.0 kB/s (broker 3)'
    """
    rate = done / seconds if seconds > 0 else 0.0
    if in_bytes:
        text = size(done) if total is None else f"{size(done)} of {size(total)}"
        text += f", {size(rate)}/s"
    else:
        text = f"{done} {noun}" if total is None else f"{done} of {total} {noun}"
        text += f", {rate:.1f}/s"
    if total is not None and rate > 0 and done < total:
        text += f", {duration((total - done) / rate)} left"
    return f"{text} ({waits_for})" if waits_for else text
