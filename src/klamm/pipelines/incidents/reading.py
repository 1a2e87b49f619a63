"""Reads chunks of logs into folded records, and joins what the chunks of all files gave."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

from klamm.pipelines.incidents.klamm_events import parse_event
from klamm.pipelines.incidents.parser import ENTRY_START, UNKNOWN, parse
from klamm.pipelines.incidents.record import Key, Record, fold, in_order
from klamm.pipelines.incidents.sources import KLAMM, SEPARATORS, Chunk, LogFile, Oddities, blocks, opened, problem_of

_BROKER_ID: Final = re.compile(r"broker\.id=(\d+)")
SHAPES_MAX: Final = 1000
"""Shapes of lines that are not understood, which one chunk may report."""
OTHER_SHAPES: Final = "(other lines)"
_NUMBER_IN_NAME: Final = re.compile(r"(\d+)\D*$")


class ChunkResult(NamedTuple):
    path: str
    records: Sequence[Record]
    """Folded."""
    entries: int
    ignored: int
    """Entries that say nothing about the control plane."""
    first: int | None
    last: int | None
    problem: str = ""
    start: int = 0
    checksum: int = 0
    """The checksum covers what was read, without compression: equal files are copies."""


class FileReport(NamedTuple):
    path: str
    broker: int | None
    entries: int
    facts: int
    ignored: int
    unknown: int
    first: int | None
    last: int | None
    copy_of: str
    """A file with the same content. Only one of them counts."""
    problem: str


class Logs(NamedTuple):
    """Everything that was read."""

    records: Sequence[Record]
    files: Sequence[FileReport]

    @property
    def writers(self) -> list[int]:
        return sorted({file.broker for file in self.files if file.broker is not None})


def read_chunk(chunk: Chunk) -> ChunkResult:
    folded: dict[Key, Record] = {}
    entries = ignored = 0
    first: int | None = None
    last: int | None = None
    problem = ""
    checksum = 0
    shapes: set[str] = set()
    oddities = Oddities()
    separator = SEPARATORS[chunk.kind]
    try:
        with opened(chunk.path, compressed=chunk.compressed) as file:
            for block in blocks(file, separator, chunk.start, chunk.end, oddities):
                checksum = zlib.crc32(block, checksum)
                found, count = _events(block) if chunk.kind == KLAMM else _entries(block)
                entries += count
                ignored += count - len(found)
                fold(folded, (_bounded(record, shapes) if record.kind == UNKNOWN else record for record in found))
                times = [record.t for record in found if record.t]
                if times:
                    first = min(times) if first is None else min(first, *times)
                    last = max(times) if last is None else max(last, *times)
    except (OSError, EOFError, zlib.error) as error:
        problem = problem_of(error)
    told = "; ".join(filter(None, (problem, str(oddities))))
    records = list(folded.values())
    return ChunkResult(chunk.path, records, entries, ignored, first, last, told, chunk.start, checksum)


def _bounded(record: Record, shapes: set[str]) -> Record:
    """A file of anything must not fill the memory: shapes beyond the first ones are counted together."""
    text = record.text or ""
    if text in shapes:
        return record
    if len(shapes) >= SHAPES_MAX:
        return record._replace(text=OTHER_SHAPES)
    shapes.add(text)
    return record


def _entries(block: bytes) -> tuple[list[Record], int]:
    pieces = block.decode("utf-8", "replace").split("\n" + ENTRY_START)
    records = [record for piece in pieces[1:] if (record := parse(ENTRY_START + piece)) is not None]
    return records, len(pieces) - 1


def _events(block: bytes) -> tuple[list[Record], int]:
    lines = block.splitlines()
    records = [record for line in lines if (record := parse_event(line)) is not None]
    return records, sum(1 for line in lines if line)


def join(files: Sequence[LogFile], results: Iterable[ChunkResult]) -> Logs:
    """Give each record its broker, fold again across files, and put all in order."""
    by_path: dict[str, list[ChunkResult]] = {file.path: [] for file in files}
    for result in results:
        by_path[result.path].append(result)
    brokers = _brokers(by_path)
    folded: dict[Key, Record] = {}
    reports = []
    seen: dict[tuple[object, ...], str] = {}
    for file in files:
        broker = brokers.get(file.path)
        parts = by_path[file.path]
        content = (broker, *sorted((part.start, part.checksum, part.entries) for part in parts if part.entries))
        original = seen.setdefault(content, file.path) if len(content) > 1 else file.path
        if original == file.path:
            for part in parts:
                fold(folded, (r if r.broker is not None else r._replace(broker=broker) for r in part.records))
        reports.append(_report(file, broker, parts, "" if original == file.path else original))
    return Logs(in_order(folded.values()), reports)


def _report(file: LogFile, broker: int | None, parts: Sequence[ChunkResult], copy_of: str) -> FileReport:
    unknown = sum(r.times for part in parts for r in part.records if r.kind == UNKNOWN)
    entries, ignored = sum(part.entries for part in parts), sum(part.ignored for part in parts)
    problem = file.problem or "; ".join(dict.fromkeys(part.problem for part in parts if part.problem))
    if not problem and entries and broker is None:
        problem = "no entry names the broker that wrote it"
    return FileReport(
        path=file.path,
        broker=broker,
        entries=entries,
        facts=entries - ignored - unknown,
        ignored=ignored,
        unknown=unknown,
        first=min((part.first for part in parts if part.first is not None), default=None),
        last=max((part.last for part in parts if part.last is not None), default=None),
        copy_of=copy_of,
        problem=problem,
    )


def _brokers(by_path: Mapping[str, Sequence[ChunkResult]]) -> dict[str, int]:
    """The broker that wrote each file: by its own entries, else by its directory's other files, else by its name."""
    found: dict[str, int] = {}
    directories: dict[str, Counter[int]] = {}
    for path, parts in by_path.items():
        named = Counter[int]()
        for part in parts:
            for record in part.records:
                if record.broker is not None:
                    named[record.broker] += record.times
                elif record.kind == "config" and (dumped := _BROKER_ID.search(record.text or "")):
                    named[int(dumped[1])] += 1000  # a broker knows its own id better than others do
        if named:
            found[path] = min(named, key=lambda broker: (-named[broker], broker))
            directories.setdefault(str(PurePath(path).parent), Counter())[found[path]] += 1
    for path, parts in by_path.items():
        if path in found or not any(part.entries for part in parts):
            continue
        directory = str(PurePath(path).parent)
        number = _NUMBER_IN_NAME.search(PurePath(path).parent.name)
        if directory in directories:
            found[path] = directories[directory].most_common(1)[0][0]
        elif number is not None:
            found[path] = int(number[1])
    return found
