"""The files of a report: which ones are logs, what kind each is, and how it is cut into chunks of whole entries.

A chunk is a range of bytes. It holds the entries that begin inside of it, so any ranges that cover a file give each
entry once. A gzipped file cannot be cut, so it is one chunk.
"""

from __future__ import annotations

import gzip
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Final, NamedTuple

KAFKA: Final = "kafka"
KLAMM: Final = "klamm"
SEPARATORS: Final = {KAFKA: b"\n[20", KLAMM: b"\n{"}
"""What stands before every entry except the first one of a file."""

CHUNK_BYTES: Final = 32 * 1024 * 1024
BLOCK_BYTES: Final = 4 * 1024 * 1024
ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longer entries are cut: no rule reads that far, and memory stays bounded."""
ENTRY_BYTES_KEPT: Final = 64 * 1024

_LOG_NAMES: Final = re.compile(r"(state-change|controller|server|broker|kafkaServer)[\w-]*\.(log|json|out)(\.[\w.-]+)?")
_LOOKED_AT_BYTES: Final = 256 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF_16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_TIMES: Final = {KAFKA: re.compile(rb"\n\[20\d\d-\d\d-\d\d"), KLAMM: re.compile(rb"\n\{")}


class LogFile(NamedTuple):
    path: str
    kind: str
    compressed: bool
    size: int
    problem: str = ""
    """Why it cannot be read, in words. Empty if it can."""


class Chunk(NamedTuple):
    path: str
    kind: str
    compressed: bool
    start: int
    end: int | None
    """None: to the end of the file."""


def find_logs(paths: Iterable[Path]) -> list[LogFile]:
    """A file that is named is read whatever its name; of a directory those are that look like logs.

    Their paths are absolute, because the workers of Spark run in other directories.
    """
    found: dict[Path, None] = {}
    for path in map(Path.absolute, paths):
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if _LOG_NAMES.fullmatch(file.name) and file.is_file())
            found.update(dict.fromkeys(file for file in files if not _is_twin(file)))
        else:
            found[path] = None
    return [look_at(path) for path in found]


def _is_twin(file: Path) -> bool:
    """klamm writes its state changes twice: as events, and for people in Kafka's format."""
    return file.name.startswith("state-change.log") and (file.parent / "state-change.json").exists()


def look_at(path: Path) -> LogFile:
    compressed = False
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return LogFile(str(path), KAFKA, compressed=False, size=0, problem="it is not a file")
        with path.open("rb") as raw:
            compressed = raw.read(2) == _GZIP_MAGIC
        if path.suffix == ".gz" and found.st_size and not compressed:
            return LogFile(str(path), KAFKA, False, found.st_size, "it is not gzip, although its name says so")
        with opened(str(path), compressed=compressed) as file:
            first, damage = gather(file, _LOOKED_AT_BYTES)
            if not compressed and not first.strip(b"\0"):
                file.seek(max(0, found.st_size - _LOOKED_AT_BYTES))
                first += gather(file, _LOOKED_AT_BYTES)[0]
    except OSError as error:
        return LogFile(str(path), KAFKA, compressed, 0, problem_of(error))
    if damage is not None and not first:
        return LogFile(str(path), KAFKA, compressed, found.st_size, problem_of(damage))
    kind, problem = judge(first)
    return LogFile(str(path), kind, compressed, found.st_size, problem)


def judge(first: bytes) -> tuple[str, str]:
    """The kind of a file by its beginning, and why it cannot be read, if so."""
    text = first.replace(b"\0", b"\n").removeprefix(_BYTE_ORDER_MARK)
    kind = KLAMM if text.lstrip()[:1] == b"{" else KAFKA
    if not text.strip() and b"\0" not in first:
        return kind, ""
    if first.startswith(_UTF_16_MARKS):
        return kind, "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"
    if _TIMES[kind].search(b"\n" + text):
        return kind, ""
    if b"\0" in first:
        return kind, "it is binary, not a log"
    return kind, "no line of its beginning has the time that Kafka writes, [2026-01-31 23:59:59,123]"


def problem_of(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it is cut off: the gzip stream has no end. What stands before is used"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return f"its gzip stream is damaged ({error}). What stands before is used"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def opened(path: str, *, compressed: bool) -> BufferedIOBase:
    return gzip.open(path, "rb") if compressed else open(path, "rb")


def chunks_of(files: Sequence[LogFile], chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    chunks: list[Chunk] = []
    for file in files:
        if file.problem:
            continue
        if file.compressed or file.size <= chunk_bytes:
            chunks.append(Chunk(file.path, file.kind, file.compressed, 0, None))
            continue
        starts = range(0, file.size, chunk_bytes)
        ends = [*starts[1:], None]
        chunks += [Chunk(file.path, file.kind, False, start, end) for start, end in zip(starts, ends, strict=True)]
    return chunks


def gather(file: BufferedIOBase, wanted: int) -> tuple[bytes, Exception | None]:
    """Up to so many bytes. Damage is returned beside what could be read before it, not raised instead."""
    parts: list[bytes] = []
    left = wanted
    try:
        while left > 0 and (data := file.read1(left)):
            parts.append(data)
            left -= len(data)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), error
    return b"".join(parts), None


class Oddities:
    """What was met while reading and is not an entry."""

    def __init__(self) -> None:
        self.zero_bytes = 0
        """Left by a crash, or by copytruncate."""
        self.cut_entries = 0

    def __str__(self) -> str:
        told = []
        if self.zero_bytes:
            told.append(f"{self.zero_bytes} zero bytes, as a crash or copytruncate leaves them, were skipped")
        if self.cut_entries:
            limit = ENTRY_BYTES_MAX // (1024 * 1024)
            told.append(f"of {self.cut_entries} entries above {limit} MB only the beginning was read")
        return "; ".join(told)


def blocks(
    file: BufferedIOBase, separator: bytes, start: int, end: int | None, oddities: Oddities | None = None
) -> Iterator[bytes]:
    """The entries that begin in a range, many at once; every entry with the separator in front.

    What damage leaves is given first; then the damage is raised.
    """
    buffer, base = (b"", start - 1) if start else (b"\n", -1)  # as if a line ended before the file began
    if start:
        file.seek(base)
    inside = False
    kept = len(separator) - 1
    oddities = oddities or Oddities()
    while True:
        data, damage = gather(file, BLOCK_BYTES)
        ended = len(data) < BLOCK_BYTES
        if b"\0" in data:
            oddities.zero_bytes += data.count(b"\0")
            data = data.replace(b"\0", b"\n")  # an entry may follow without a line end of its own
        buffer += data
        if base < 0 and buffer.startswith(b"\n" + _BYTE_ORDER_MARK):
            base, buffer = base + len(_BYTE_ORDER_MARK), b"\n" + buffer[1 + len(_BYTE_ORDER_MARK) :]
        if not inside:
            found = buffer.find(separator)
            if found < 0:
                if damage is not None:
                    raise damage
                base, buffer = base + max(0, len(buffer) - kept), buffer[-kept:]
                if ended or (end is not None and base >= end - 1):
                    return  # what follows belongs to the next range
                continue
            base, buffer, inside = base + found, buffer[found:], True
        if end is not None and base + len(buffer) > end:
            last = buffer.find(separator, max(0, end - 1 - base))
            if last >= 0:
                yield buffer[:last]
                return
        if ended:
            yield buffer
            if damage is not None:
                raise damage
            return
        cut = buffer.rfind(separator)
        if cut > 0:
            yield buffer[:cut]
            base, buffer = base + cut, buffer[cut:]
        elif len(buffer) > ENTRY_BYTES_MAX:
            oddities.cut_entries += 1
            yield buffer[:ENTRY_BYTES_KEPT]
            base, buffer, inside = base + len(buffer) - kept, buffer[-kept:], False
