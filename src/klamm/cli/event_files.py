"""Event files of brokers on disk: where they are, and what was appended since the last look.

Who names no files means the cluster that the command talks to. Its brokers say where their logs are, and those
directories count that are on this machine and whose meta.properties names this cluster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.admin.event_lines import Event, events_in
from klamm.cli.client import connected
from klamm.cli.output import fail
from klamm.model.errors import KlammError

EVENTS_FILE: Final = "state-change.json"
LOG_DIRS: Final = "log.dirs"
EventPaths = Annotated[
    list[Path] | None,
    typer.Argument(
        help=f"{EVENTS_FILE} files of brokers, or directories that contain them. The default is those of the brokers "
        "that run on this machine.",
        exists=True,
    ),
]


def event_files(given: Sequence[Path] | None, bootstrap: str) -> list[list[Path]]:
    """The files of each broker, oldest first: name.2, name.1, name. Fails if there are none."""
    paths = given or log_directories(bootstrap)
    if not paths:
        fail(f"no broker of this cluster has its logs on this machine: name directories with their {EVENTS_FILE}")
    found: dict[Path, list[Path]] = {}
    for path in paths:
        for file in path.rglob(f"{EVENTS_FILE}*") if path.is_dir() else [path]:
            found.setdefault(file.with_name(EVENTS_FILE) if path.is_dir() else file, []).append(file)
    if not found:
        fail(f"no {EVENTS_FILE} in {', '.join(map(str, paths))}")
    return [sorted(set(files), key=_age, reverse=True) for _, files in sorted(found.items())]


def log_directories(bootstrap: str) -> list[Path]:
    """Log directories on this machine of the cluster at this address."""
    from klamm.client.admin import BROKER

    named: list[str] = []
    with connected(bootstrap) as client:
        for broker in sorted(client.run(client.admin.brokers())):
            try:
                settings = client.run(client.admin.describe_configs(BROKER, str(broker), [LOG_DIRS]))
            except KlammError:
                continue  # it is down; the others have their files
            named += (settings.get(LOG_DIRS) or "").split(",")
        cluster_id = client.cluster.cluster_id
    return [Path(name) for name in named if name and _is_of_cluster(Path(name), cluster_id)]


def _is_of_cluster(directory: Path, cluster_id: str | None) -> bool:
    try:
        return f"cluster.id={cluster_id}" in (directory / "meta.properties").read_text().splitlines()
    except OSError:
        return False


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
