"""Files in, records out: cutting, compression, damage, and the broker that wrote each file."""

from __future__ import annotations

import gzip
import os
from io import BytesIO
from pathlib import Path

import pytest

from klamm.pipelines.incidents import sources
from klamm.pipelines.incidents.local_engine import read_locally
from klamm.pipelines.incidents.reading import Logs, join
from klamm.pipelines.incidents.report import chosen
from klamm.pipelines.incidents.sources import KAFKA, SEPARATORS, LogFile, blocks, chunks_of, find_logs
from klamm.pipelines.incidents.spark_engine import read_rows, result_of

STACK = "\njava.io.IOException: x\n\tat [20 things]\n"
ENTRIES = [
    "[2026-11-15 21:56:37,546] INFO [Controller id=1] Resigned (kafka.controller.KafkaController)\n",
    f"[2026-11-15 21:56:38,546] WARN [KafkaServer id=1] null (kafka.server.KafkaServer){STACK}",
    "[2026-11-15 21:56:39,546] INFO Session expired. (kafka.zookeeper.ZooKeeperClient)\n",
    "[2026-11-15 21:56:40,546] INFO [Controller id=1] A sentence from the future (kafka.controller.KafkaController)\n",
]
TEXT = "".join(ENTRIES)


def read(*paths: Path) -> Logs:
    files = find_logs(paths)
    return join(files, read_locally(files))


def kinds(logs: Logs) -> list[tuple[str, int | None]]:
    return [(record.kind, record.broker) for record in logs.records]


@pytest.mark.parametrize("size", [1, 2, 7, 50, 90, 91, 92, 200, 1000])
@pytest.mark.parametrize("block_bytes", [1, 16, 100, 10_000])
def test_any_cuts_give_every_entry_once(size: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", block_bytes)
    data = ("half of an entry\n" + TEXT).encode()
    found = []
    for start in range(0, len(data), size):
        end = start + size if start + size < len(data) else None
        for block in blocks(BytesIO(data), SEPARATORS[KAFKA], start, end):
            found += block.decode().split("\n[20")[1:]
    assert ["[20" + entry.rstrip("\n") for entry in found] == [entry.rstrip("\n") for entry in ENTRIES]


def test_an_entry_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BLOCK_BYTES", 100), ("ENTRY_BYTES_MAX", 500), ("ENTRY_BYTES_KEPT", 50)):
        monkeypatch.setattr(sources, name, value)
    data = (ENTRIES[0] + "x" * 5_000 + "\n" + ENTRIES[2]).encode()
    found = [len(block) for block in blocks(BytesIO(data), SEPARATORS[KAFKA], 0, None)]
    assert max(found) <= 600
    assert len(found) == 2


def test_a_range_inside_an_endless_entry_is_not_read_beyond_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of the ranges of a line of 2 GB would read it to its end."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 100)
    file = BytesIO((ENTRIES[0] + "x" * 50_000 + "\n" + ENTRIES[2]).encode())
    assert list(blocks(file, SEPARATORS[KAFKA], 10_000, 10_500)) == []
    assert file.tell() < 10_800


def test_what_is_skipped_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """copytruncate leaves zeros in front, a crash leaves them behind; an endless entry is cut."""
    (tmp_path / "server.log").write_bytes(bytes(300_000) + TEXT.encode() + bytes(50))
    (tmp_path / "controller.log").write_bytes((ENTRIES[0] + "x" * 5_000 + "\n" + ENTRIES[2]).encode())
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(sources, "ENTRY_BYTES_MAX", 2048)
    files = {Path(file.path).name: file for file in read(tmp_path).files}
    assert files["server.log"].entries == 4
    assert files["server.log"].problem.startswith("300050 zero bytes")
    assert files["controller.log"].entries == 2
    assert files["controller.log"].problem.startswith("of 1 entries above")


@pytest.mark.parametrize(
    ("data", "entries", "problem"),
    [
        (b"\xef\xbb\xbf" + TEXT.encode(), 4, ""),
        (TEXT.replace("\n", "\r\n").encode(), 4, ""),
        (TEXT.replace("A sentence", "Ein Gru\xdf").encode("latin-1"), 4, ""),
        (TEXT.encode("utf-16"), 0, "it is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
        (bytes(1000), 0, "it is binary, not a log"),
    ],
    ids=["byte order mark", "lines of Windows", "Latin-1", "UTF-16", "zeros only"],
)
def test_other_encodings(data: bytes, entries: int, problem: str, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_bytes(data)
    (file,) = read(tmp_path).files
    assert (file.entries, file.facts, file.problem) == (entries, 2 if entries else 0, problem)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "server.log")
    assert [file.problem for file in find_logs([tmp_path / "server.log"])] == ["it is not a file"]


def test_a_file_of_anything_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.pipelines.incidents.reading.SHAPES_MAX", 5)
    lines = (f"{ENTRIES[0][:26]} INFO [Controller id=1] {'ab'[n % 2] * n} (kafka.controller.X)\n" for n in range(1, 20))
    (tmp_path / "server.log").write_text("".join(lines))
    logs = read(tmp_path)
    told = {record.text: record.times for record in logs.records}
    assert len(told) == 6 and told["(other lines)"] == 14
    assert logs.files[0].unknown == 19


def test_a_copy_counts_once_and_is_named(tmp_path: Path) -> None:
    lost = "".join(
        f"[2026-11-15 21:56:3{n},546] WARN [Controller id=1] Controller 1's connection to broker h:1 (id: 2 rack: x) "
        "was unsuccessful (kafka.controller.X)\n"
        for n in range(5)
    )
    (tmp_path / "controller.log").write_text(lost)
    alone = read(tmp_path).records
    (tmp_path / "controller.log.1").write_text(lost)
    (tmp_path / "controller.log.2.gz").write_bytes(gzip.compress(lost.encode()))
    logs = read(tmp_path)
    assert logs.records == alone
    original = str(tmp_path / "controller.log")
    assert [(file.copy_of, file.problem) for file in logs.files] == [("", ""), (original, ""), (original, "")]


def test_facts_unknown_and_ignored_entries_are_counted(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(TEXT)
    logs = read(tmp_path)
    (file,) = logs.files
    assert (file.broker, file.entries, file.facts, file.ignored, file.unknown, file.problem) == (1, 4, 2, 1, 1, "")
    assert file.last is not None
    assert file.first is not None
    assert file.last - file.first == 3000
    assert kinds(logs) == [("ctl.resigned", 1), ("zk.expired", 1), ("unknown", 1)]


def test_gzipped_rotated_and_copied_files_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "controller.log.2026-11-15-21.gz").write_bytes(gzip.compress(TEXT.encode()))
    once = kinds(read(tmp_path))
    (tmp_path / "controller.log.1").write_text(TEXT)
    assert once == kinds(read(tmp_path)) == [("ctl.resigned", 1), ("zk.expired", 1), ("unknown", 1)]


def test_a_damaged_file_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    many = TEXT.replace("21:56", "21:57") * 500
    whole = gzip.compress(
        "".join(f"[2026-11-15 21:56:37,{n % 1000:03}] INFO x{n} (a)\n{many}" for n in range(3)).encode()
    )
    (tmp_path / "server.log.1.gz").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "server.log.2.gz").write_bytes(whole[:200] + bytes(50) + whole[250:])
    (tmp_path / "server.log.3.gz").write_text(TEXT)
    (tmp_path / "server.log.4").write_bytes(b"\x00\x01binary" * 100)
    (tmp_path / "server.log.5").write_text("a letter\nto nobody\n")
    (tmp_path / "server.log.6").write_text("")
    (tmp_path / "controller.log").write_text(TEXT)
    logs = read(tmp_path)
    problems = {Path(file.path).name: file.problem for file in logs.files}
    assert problems["server.log.1.gz"].startswith("it is cut off: the gzip stream has no end")
    assert "damaged" in problems["server.log.2.gz"]
    assert problems["server.log.3.gz"] == "it is not gzip, although its name says so"
    assert problems["server.log.4"] == "it is binary, not a log"
    assert problems["server.log.5"].startswith("no line of its beginning has the time")
    assert problems["server.log.6"] == problems["controller.log"] == ""
    assert ("ctl.resigned", 1) in kinds(logs)
    (cut,) = [file for file in logs.files if file.path.endswith("1.gz")]
    assert cut.entries > 100, "what stands before the cut is used"


def test_a_file_without_ids_belongs_to_the_broker_of_its_directory(tmp_path: Path) -> None:
    for name in ("a", "b", "node-7", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "controller.log").write_text(ENTRIES[0].replace("id=1", "id=4"))
    (tmp_path / "a" / "server.log").write_text(ENTRIES[2])
    dump = "[2026-11-15 21:56:37,546] INFO KafkaConfig values: \n\tbroker.id = 5\n (kafka.server.KafkaConfig)\n"
    (tmp_path / "b" / "server.log").write_text(dump + ENTRIES[2])
    (tmp_path / "node-7" / "server.log").write_text(ENTRIES[2])
    (tmp_path / "c" / "server.log").write_text(ENTRIES[2])
    found = {Path(file.path).parent.name: file for file in read(tmp_path).files if file.path.endswith("server.log")}
    assert {name: file.broker for name, file in found.items()} == {"a": 4, "b": 5, "node-7": 7, "c": None}
    assert found["c"].problem == "no entry names the broker that wrote it"


def test_only_logs_are_taken_from_a_directory_and_events_of_klamm_once(tmp_path: Path) -> None:
    for name in (
        "server.log",
        "state-change.log",
        "state-change.json",
        "00000000000000000000.log",
        "server.properties",
    ):
        (tmp_path / name).write_text(TEXT)
    assert [Path(file.path).name for file in find_logs([tmp_path])] == ["server.log", "state-change.json"]
    named = tmp_path / "server.properties"
    assert [file.path for file in find_logs([named])] == [str(named)], "a file that is named is read"


def test_paths_are_absolute_for_workers_that_run_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.log").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "server.log")
    assert (
        [file.path for file in find_logs([Path(".")])]
        == [file.path for file in find_logs([Path("server.log")])]
        == [here]
    )


def test_the_rows_that_spark_carries_hold_everything(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(TEXT)
    shrink = (
        "[Partition a-0 broker=1] Shrinking ISR from 1,2,3 to 1,3. Leader: (highWatermark: 4, endOffset: 4). Out of "
    )
    (tmp_path / "controller.log").write_text(f"[2026-11-15 21:56:37,546] INFO {shrink}sync replicas: (brokerId: 2).\n")
    (tmp_path / "server.log.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    files = find_logs([tmp_path])
    rows = [row for chunk in chunks_of(files) for row in read_rows(tuple(chunk))]
    carried = [tuple(list(value) if isinstance(value, tuple) else value for value in row) for row in rows]
    assert join(files, map(result_of, carried)) == join(files, read_locally(files))


def test_large_files_are_cut_and_gzipped_ones_are_not() -> None:
    plain = LogFile("a", KAFKA, compressed=False, size=250)
    squeezed = LogFile("b", KAFKA, compressed=True, size=250)
    broken = LogFile("c", KAFKA, compressed=False, size=250, problem="x")
    chunks = chunks_of([plain, squeezed, broken], chunk_bytes=100)
    assert [(c.path, c.start, c.end) for c in chunks] == [
        ("a", 0, 100),
        ("a", 100, 200),
        ("a", 200, None),
        ("b", 0, None),
    ]


def test_processes_read_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for broker in range(3):
        (tmp_path / f"b{broker}").mkdir()
        (tmp_path / f"b{broker}" / "server.log").write_text(TEXT.replace("id=1", f"id={broker}"))
    alone = read(tmp_path)
    monkeypatch.setattr("klamm.pipelines.incidents.local_engine.ALONE_BYTES", 0)
    files = find_logs([tmp_path])
    assert join(files, read_locally(files, processes=2)) == alone


def test_auto_takes_spark_for_large_inputs() -> None:
    small, large = LogFile("a", KAFKA, False, 19 * 1024**3), LogFile("a", KAFKA, False, 21 * 1024**3)
    assert chosen("auto", [small]) == "local"
    assert chosen("auto", [large]) == chosen("auto", [LogFile("a", KAFKA, True, 3 * 1024**3)]) == "spark"
    assert chosen("local", [large]) == "local"
