"""The real disk port: the order of writes and syncs, writes ahead of the end, and what threads and loop do at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.log import disk as real_disk
from klamm.log.disk import FileDisk, OpenFile
from klamm.model.ports import Buffer


class Calls:
    """Records what reaches the file system, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, str, bytes | None]] = []
        for name in ("fsync", "replace"):
            monkeypatch.setattr(real_disk.os, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name: str, plain: Callable[..., None]) -> Callable[..., None]:
        def call(*args: int | str) -> None:
            path = Path(f"/proc/self/fd/{args[0]}").readlink() if name == "fsync" else Path(str(args[0]))
            self.made.append((name, path.name, path.read_bytes() if path.is_file() else None))
            plain(*args)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_file_is_written_synced_renamed_and_its_name_synced(disk: FileDisk, tmp_path: Path, calls: Calls) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "f").write_bytes(b"old")
    disk.write_atomically(str(directory / "f"), b"new")
    content = b"new"
    assert calls.made == [("fsync", "f.tmp", content), ("replace", "f.tmp", content), ("fsync", "d", None)]
    assert [(path.name, path.read_bytes()) for path in directory.iterdir()] == [("f", b"new")]


def test_a_sync_that_fails_leaves_the_old_file(disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(real_disk.os, "fsync", fail)
        with pytest.raises(OSError, match="Input"):
            disk.write_atomically(str(tmp_path / "f"), b"new", 5)
    assert (tmp_path / "f").read_bytes() == b"old"
    disk.write_atomically(str(tmp_path / "f"), b"again", 4)
    assert (tmp_path / "f").read_bytes() == b"again", "a write that failed has no turn"


def test_a_write_that_comes_late_does_nothing(disk: FileDisk, tmp_path: Path, calls: Calls) -> None:
    path = str(tmp_path / "f")
    first, second = disk.next_turn(), disk.next_turn()
    assert first < second
    disk.write_atomically(path, b"second", second)
    calls.made.clear()
    disk.write_atomically(path, b"first", first)
    assert (Path(path).read_bytes(), calls.made) == (b"second", [])
    disk.write_atomically(path, b"the same turn", second)
    assert Path(path).read_bytes() == b"the same turn"
    disk.write_atomically(str(tmp_path / "g"), b"another file", first)
    assert (tmp_path / "g").read_bytes() == b"another file"


def test_a_directory_is_synced_and_closed(disk: FileDisk, tmp_path: Path, calls: Calls) -> None:
    before = len(os.listdir("/proc/self/fd"))
    disk.sync_directory(str(tmp_path))
    assert calls.made == [("fsync", tmp_path.name, None)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_syncs_itself(disk: FileDisk, tmp_path: Path, calls: Calls) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    file.append([b"abc"])
    file.sync()
    assert calls.made == [("fsync", "f", b"abc")]
    file.close()
    file.sync()
    assert len(calls.made) == 1


def test_one_owner_at_a_time(disk: FileDisk, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    release = disk.lock(str(tmp_path / ".lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path / "link" / ".lock"))
    release()
    disk.lock(str(tmp_path / "link" / ".lock"))()


# --- appends and writes ahead of the end -----------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> OpenFile:
    (tmp_path / "f").write_bytes(b"old ")
    return OpenFile(str(tmp_path / "f"), create=False)


def test_more_chunks_than_one_call_takes(file: OpenFile, tmp_path: Path) -> None:
    chunks = [bytes([number % 256]) for number in range(2_000)]
    assert file.append(chunks) == 4
    assert file.append([b"end"]) == 2_004
    assert (tmp_path / "f").read_bytes() == b"old " + b"".join(chunks) + b"end"
    file.close()


def test_a_read_that_comes_in_pieces(file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.append([b"abcdef"])
    pread = os.pread
    monkeypatch.setattr(real_disk.os, "pread", lambda fd, size, position: pread(fd, min(size, 2), position))
    assert file.pread(5, 4) == b"abcde"
    assert file.pread(99, 8) == b"ef"
    file.close()


def test_what_is_staged_is_appended_by_its_head(file: OpenFile, tmp_path: Path) -> None:
    staged = file.stage(b"body", 2)
    assert staged.commit(b"h1") is None, "it is not written yet"
    staged.write()
    assert (file.size(), (tmp_path / "f").stat().st_size) == (4, 10)
    assert staged.commit(b"h2") == 4
    assert (file.size(), (tmp_path / "f").read_bytes()) == (10, b"old h2body")
    assert staged.commit(b"h3") is None, "once"
    staged.drop()
    assert (tmp_path / "f").read_bytes() == b"old h2body"
    file.close()


def _append(file: OpenFile) -> None:
    file.append([b"new"])


def _pwrite(file: OpenFile) -> None:
    file.pwrite(b"new", 4)


def _truncate(file: OpenFile) -> None:
    file.truncate(2)


def _stage(file: OpenFile) -> None:
    file.stage(b"another", 1)


@pytest.mark.parametrize(
    ("change", "content"),
    [
        (_append, b"old new"),
        (_pwrite, b"old new"),
        (_truncate, b"ol"),
        (_stage, b"old "),
        (OpenFile.settle, b"old "),
        (OpenFile.close, b"old "),
    ],
)
@pytest.mark.parametrize("written", [False, True])
def test_whatever_changes_the_file_drops_what_is_staged(
    file: OpenFile, tmp_path: Path, change: Callable[[OpenFile], None], content: bytes, written: bool
) -> None:
    staged = file.stage(b"body that is longer", 2)
    if written:
        staged.write()
    change(file)
    assert (tmp_path / "f").read_bytes() == content
    staged.write()
    assert staged.commit(b"hh") is None
    assert (tmp_path / "f").read_bytes() == content, "the thread stops"
    file.close()


def test_a_head_that_does_not_fit_appends_nothing(
    file: OpenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = file.stage(b"body", 2)
    staged.write()
    pwrite = os.pwrite

    def short(fd: int, data: Buffer, position: int) -> int:
        return pwrite(fd, bytes(data)[:1], position)

    with monkeypatch.context() as full:
        full.setattr(real_disk.os, "pwrite", short)
        with pytest.raises(OSError, match="no room") as caught:
            staged.commit(b"hh")
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 4
    assert file.append([b"new"]) == 4
    assert (tmp_path / "f").read_bytes() == b"old new"
    file.close()
