"""A file that grows is renamed, and only so many are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.telemetry.rotating_file import RotatingFile, copy_and_truncate


def test_a_large_file_becomes_an_older_one(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "log"), bytes_max=4, kept=2)
    for text in ("first\n", "second\n", "third\n", "fourth\n", "ab", "cd"):
        file.write(text)
    file.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "log": "abcd",
        "log.1": "fourth\n",
        "log.2": "third\n",
    }
    again = RotatingFile(str(tmp_path / "log"), bytes_max=4, kept=2)
    again.write("next")
    again.close()
    assert (tmp_path / "log").read_text() == "next", "the size of an existing file counts"


def test_a_disk_that_refuses_the_next_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatingFile(str(tmp_path / "log"), bytes_max=4, kept=2)
    file.write("first\n")

    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(OSError, match="no space"):
            file.write("second\n")
    file.write("third\n")
    file.close()
    assert (tmp_path / "log").read_text() == "third\n"
    assert (tmp_path / "log.1").read_text() == "first\n"


def test_a_file_that_another_process_appends_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as writer:
        for text in (b"first\n", b"second\n", b"third\n"):
            writer.write(text)
            copy_and_truncate(str(path), bytes_max=6, kept=2)
        writer.write(b"x")
        copy_and_truncate(str(path), bytes_max=6, kept=2)
    found = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
    assert found == {"log": "x", "log.1": "third\n", "log.2": "second\n"}
    copy_and_truncate(str(tmp_path / "none"))
