"""A log file that rotates, and begins anew with the lines that say whose log it is.

A log call with `extra=HEADING` makes its line part of the heading: version, settings, cluster. Without it, the file in
which one looks for an incident says nothing of the process that wrote it.
"""

from __future__ import annotations

import logging
from typing import Final

from klamm.telemetry.rotating_file import BYTES_MAX, KEPT_FILES, RotatingFile

HEADING: Final = {"heading": True}
HEADING_LINES_MAX: Final = 10


class LogFile(logging.Handler):
    def __init__(self, path: str, bytes_max: int = BYTES_MAX, kept: int = KEPT_FILES) -> None:
        """Opens the file, or raises OSError."""
        super().__init__()
        self._heading: list[str] = []
        self._file = RotatingFile(path, bytes_max, kept, heading=lambda: "".join(self._heading))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n"
            self._file.write(line)
        except Exception:  # a full disk must not stop the process that logs; logging says it on stderr
            self.handleError(record)
            return
        if getattr(record, "heading", False) and len(self._heading) < HEADING_LINES_MAX:
            self._heading.append(line)

    def close(self) -> None:
        self._file.close()
        super().close()
