"""A text file that is renamed when it is large: `name` becomes `name.1`, `name.1` becomes `name.2`, and so on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Final

BYTES_MAX: Final = 64 << 20
KEPT_FILES: Final = 4


class RotatingFile:
    def __init__(
        self,
        path: str,
        bytes_max: int = BYTES_MAX,
        kept: int = KEPT_FILES,
        heading: Callable[[], str] = lambda: "",
    ) -> None:
        """Opens the file, or raises OSError. Every file that follows it begins with `heading`."""
        self.path = path
        self._bytes_max = bytes_max
        self._kept = kept
        self._heading = heading
        self._file = open(path, "ab")  # noqa: SIM115 - the owner closes it
        self._size = self._file.tell()

    def write(self, text: str) -> None:
        """The text is in the file when this returns."""
        if self._file.closed:  # a full disk refused the next file
            self._begin()
        elif self._size >= self._bytes_max:
            self._file.close()
            rotate(self.path, self._kept)
            self._begin()
        data = text.encode()
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def close(self) -> None:
        self._file.close()

    def _begin(self) -> None:
        self._file = open(self.path, "ab")  # noqa: SIM115
        self._file.write(self._heading().encode())
        self._size = 0


def copy_and_truncate(path: str, bytes_max: int = BYTES_MAX, kept: int = KEPT_FILES) -> None:
    """The same for a file that another process holds open for appending: copy it, then make it empty. Lines written
    between the two are lost."""
    if not os.path.exists(path) or os.path.getsize(path) < bytes_max:
        return
    copy = f"{path}.copy"
    shutil.copyfile(path, copy)
    os.truncate(path, 0)
    rotate(path, kept, newest=copy)


def rotate(path: str, kept: int = KEPT_FILES, newest: str | None = None) -> None:
    """Rename `newest`, which is `path` itself by default, to `path.1`, and every earlier one to the next number; the
    last one is lost."""
    names = [newest or path, *(f"{path}.{number}" for number in range(1, kept + 1))]
    for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
        if os.path.exists(newer):
            os.replace(newer, older)
