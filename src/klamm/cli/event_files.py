"""Event files of brokers on disk: where they are, and what was appended since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from klamm.admin.event_lines import Event, events_in
from klamm.cli.output import fail

EVENTS_FILE: Final = "state-change.json"


def event_files(paths: Sequence[Path]) -> list[list[Path]]:
    """The files of each broker, oldest first: name.2, name.1, name. Fails if there are none."""
    found: dict[Path, list[Path]] = {}
    for path in paths:
        for file in path.rglob(f"{EVENTS_FILE}*") if path.is_dir() else [path]:
            found.setdefault(file.with_name(EVENTS_FILE) if path.is_dir() else file, []).append(file)
    if not found:
        fail(f"no {EVENTS_FILE} in {', '.join(map(str, paths))}")
    return [sorted(set(files), key=_age, reverse=True) for _, files in sorted(found.items())]


def _age(file: Path) -> int:
    number = file.suffix.removeprefix(".")
    return int(number) if number.isdecimal() else 0


def read(files: Sequence[Path]) -> Iterator[Event]:
    for file in files:
        try:
            with file.open("rb") as lines:
                yield from events_in(lines)
        except FileNotFoundError:
            continue  # it was rotated away between the listing and now
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}")


class Tail:
    """What one file has that was not read before. After a rotation the new file is read from its start."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity = 0
        self._position = 0

    def news(self) -> Iterator[Event]:
        """Whole lines only: the rest of the last one comes with the next look."""
        try:
            with self._file.open("rb") as stream:
                found = os.fstat(stream.fileno())
                if found.st_ino != self._identity or found.st_size < self._position:
                    self._identity, self._position = found.st_ino, 0
                stream.seek(self._position)
                for line in stream:
                    if not line.endswith(b"\n"):
                        return
                    self._position += len(line)
                    yield from events_in([line])
        except FileNotFoundError:
            return  # between the two steps of a rotation
