"""Where a lake is: the few things that ingest and audit ask of a directory, apart from what Spark does there itself.

A local or mounted directory needs no JVM, so the state of a table can be read before Spark starts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from klamm.pipelines.lake_state import LakeError

WORK = "_klamm"
"""Directory in the lake for checkpoints and locks; no topic can have this name."""


class LakeDirectory(Protocol):
    @property
    def uri(self) -> str:
        """As Spark names it."""
        ...

    def child(self, *names: str) -> LakeDirectory: ...

    def exists(self) -> bool:
        """As a file or a directory."""
        ...

    def names(self) -> Sequence[str]:
        """The entries; none if it is not a directory."""
        ...

    def read_text(self) -> str:
        """Raises OSError."""
        ...

    def write_text(self, text: str) -> None:
        """Replaces what is there. Raises LakeError."""
        ...

    def make(self) -> None:
        """With its parents. Raises LakeError."""
        ...

    def remove(self) -> None:
        """With all that is in it, if it is there."""
        ...


class LocalDirectory:
    """A local or mounted directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def uri(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def child(self, *names: str) -> LocalDirectory:
        return LocalDirectory(self.path.joinpath(*names))

    def exists(self) -> bool:
        return self.path.exists()

    def names(self) -> Sequence[str]:
        try:
            return [entry.name for entry in os.scandir(self.path)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def write_text(self, text: str) -> None:
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError as e:
            raise LakeError(f"cannot write to the lake {self.path}: {e.strerror}") from e

    def make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise LakeError(f"cannot write to the lake {self.path}: {e.strerror}") from e

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
