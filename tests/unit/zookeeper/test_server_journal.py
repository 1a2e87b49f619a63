"""The journal: cut anywhere, it opens with the complete records before the cut and says how much it dropped."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.model import ports as ops
from klamm.model.errors import ConnectionLoss
from klamm.model.ports import OPEN_ACL, Acl, CreateMode
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server import files
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.compaction import compact
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.files import JournalDamaged
from klamm.zookeeper.server.journal import FileJournal, JournalUnusable
from klamm.zookeeper.server.memory import MemoryZooKeeper
from klamm.zookeeper.server.rules import CreateNode, DeleteNode, SetAcl, SetData
from klamm.zookeeper.server.sessions import SessionTable
from klamm.zookeeper.server.transaction_records import pack_snapshot


class StandingClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 5.0


def opened(directory: Path, **options: Any) -> tuple[Database[Any], FileJournal]:
    journal = FileJournal(directory, **options)
    sessions: SessionTable[Any] = SessionTable(
        tick_ms=500, timeout_ms_min=1000, timeout_ms_max=10_000, random=random.Random(1)
    )
    database: Database[Any] = Database(StandingClock(), sessions, lambda transaction, session_id: None, journal)
    journal.open(database)
    return database, journal


def state(database: Database[Any]) -> bytes:
    return pack_snapshot(database.zxid, database.tree, database.sessions)


def write_some(database: Database[Any], count: int, seed: int = 1) -> list[bytes]:
    """Do writes of every kind. Returns the state after each."""
    choice = random.Random(seed)
    session = database.open_session(4000)
    caller = Caller(session_id=session.id)
    states = [state(database)]
    for number in range(count):
        path = f"/n{number}"
        flags = choice.choice((0, 1, 2, 4))
        acl = choice.choice((OPEN_ACL, (Acl(1, "world", "anyone"), Acl(31, "ip", "127.0.0.1"))))
        database.multi([CreateNode(OpCode.CREATE, path, choice.choice((None, b"", b"data")), acl, flags)], caller)
        states.append(state(database))
        database.multi([SetData(path, b"x" * choice.randrange(40), -1), SetAcl(path, OPEN_ACL, -1)], caller)
        states.append(state(database))
        database.multi([DeleteNode(path, choice.choice((-1, 5)))], caller)
        states.append(state(database))
    database.close_session(session.id)
    states.append(state(database))
    return states


def segment(directory: Path) -> Path:
    (found,) = directory.glob("journal.*")
    return found


def test_reopened_is_the_same(tmp_path: Path) -> None:
    database, journal = opened(tmp_path)
    write_some(database, 20)
    journal.close()
    again, journal = opened(tmp_path)
    assert state(again) == state(database)
    assert journal.dropped_bytes == 0
    write_some(again, 5, seed=2)
    journal.close()
    third, journal = opened(tmp_path)
    assert state(third) == state(again)
    journal.close()


def test_cut_at_every_byte(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # for speed: it opens thousands of times
    database, journal = opened(tmp_path / "whole")
    empty = state(database)
    ends: list[int] = []
    path = segment(tmp_path / "whole")
    states = [empty]
    session = database.open_session(4000)
    for number in range(12):
        journal.flush()
        ends.append(path.stat().st_size)
        states.append(state(database))
        database.multi([CreateNode(OpCode.CREATE, f"/n{number}", b"data", OPEN_ACL, number % 2)], Caller(session.id))
    journal.flush()
    ends.append(path.stat().st_size)
    states.append(state(database))
    whole = path.read_bytes()
    journal.close()
    target = tmp_path / "cut"
    for size in range(len(whole) + 1):
        target.mkdir(exist_ok=True)
        (target / path.name).write_bytes(whole[:size])
        complete = sum(end <= size for end in ends)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            recovered, journal = opened(target)
        assert state(recovered) == states[complete]
        dropped = size - ([0, *ends][complete])
        assert journal.dropped_bytes == dropped
        assert (f"dropped {dropped} bytes" in caplog.text) == bool(dropped)
        recovered.spend_zxid()  # it goes on where it stopped
        journal.close()
        again, journal = opened(target)
        assert state(again) == state(recovered)
        journal.close()
        for leftover in target.iterdir():
            leftover.unlink()


async def journal_of_a_running_server(directory: Path) -> list[tuple[int, bytes]]:
    """Do writes of every kind through a socket. Returns the size of the journal and the state after each."""
    journal = FileJournal(directory)
    server = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1), journal=journal)
    path, marks = directory / "journal.0000000000000000", [(0, state(server.service.database))]

    def mark() -> None:
        marks.append((path.stat().st_size, state(server.service.database)))

    async with server.running():
        client = ZooKeeperClient(AsyncioNetwork(), SystemClock(), random.Random(1), server.address, 10_000)
        async with client.running():
            mark()
            for number in range(11):
                await client.create(f"/n{number}", b"x" * (30 * number), CreateMode(number % 2))
                mark()
                await client.create("/s-", None, CreateMode.EPHEMERAL_SEQUENTIAL)
                mark()
                await client.multi([ops.Set(f"/n{number}", b"y" * (10 * number)), ops.Create(f"/m{number}")])
                mark()
                await client.delete(f"/m{number}")
                mark()
        mark()  # the end of the session, with its ephemeral nodes
    return marks


async def test_a_real_journal_cut_at_every_byte_of_its_last_4_kib(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    scaled: Callable[[int, int], int],
) -> None:
    """The small run cuts at every seventh byte, and around the end of each record."""
    marks = await journal_of_a_running_server(tmp_path / "whole")
    path = segment(tmp_path / "whole")
    whole = path.read_bytes()
    assert marks[-1][0] == len(whole) > 4096
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    target = tmp_path / "cut"
    target.mkdir()
    cut = target / path.name
    with caplog.at_level(logging.WARNING):
        first, around = len(whole) - 4096, {end + offset for end, _ in marks for offset in (-1, 0, 1)}
        for size in range(first, len(whole) + 1):
            if (size - first) % scaled(7, 1) and size not in around:
                continue
            cut.write_bytes(whole[:size])
            end, expected = max(mark for mark in marks if mark[0] <= size)
            caplog.clear()
            recovered, journal = opened(target)
            journal.close()
            assert state(recovered) == expected, f"cut at {size}"
            assert (journal.dropped_bytes, cut.stat().st_size) == (size - end, end)
            assert [f"dropped {size - end} bytes" in message for message in caplog.messages] == [True] * (size > end)


def test_a_tail_of_zeros_is_dropped(tmp_path: Path) -> None:
    database, journal = opened(tmp_path)
    write_some(database, 3)
    journal.close()
    with segment(tmp_path).open("ab") as file:
        file.write(bytes(100))
    recovered, journal = opened(tmp_path)
    assert (state(recovered), journal.dropped_bytes) == (state(database), 100)
    journal.close()


def test_a_changed_byte_stops_the_start(tmp_path: Path) -> None:
    database, journal = opened(tmp_path)
    write_some(database, 3)
    journal.close()
    path = segment(tmp_path)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match="checksum"):
        opened(tmp_path)
    path.write_bytes(bytes(data[:60]) + b"")  # the refusal has left no lock behind
    opened(tmp_path)[1].close()


def test_a_missing_record_stops_the_start(tmp_path: Path) -> None:
    database, journal = opened(tmp_path)
    path, ends = segment(tmp_path), [0]
    for _ in range(4):
        database.spend_zxid()
        journal.flush()
        ends.append(path.stat().st_size)
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[: ends[2]] + data[ends[3] :])
    with pytest.raises(JournalDamaged, match="0x4 follows 0x2"):
        opened(tmp_path)


def compacted(journal: FileJournal) -> None:
    """Wait for the compacting process."""
    assert journal._compaction is not None
    assert journal._compaction.wait(timeout=60) == 0


def test_a_full_segment_is_compacted_by_a_process_of_its_own(tmp_path: Path) -> None:
    database, journal = opened(tmp_path, segment_bytes_max=2000)
    for number in range(8):
        write_some(database, 3, seed=number)
        journal.flush()
    assert len(list(tmp_path.glob("journal.*"))) > 1
    compacted(journal)
    (first,) = files.zxids(tmp_path, "snapshot")
    assert files.zxids(tmp_path, "journal")[0] == first  # the files it replaces are gone
    write_some(database, 3, seed=9)
    journal.flush()  # starts another segment and compacts all earlier ones
    compacted(journal)
    assert len(list(tmp_path.glob("snapshot.*"))) == 1
    assert len(list(tmp_path.glob("journal.*"))) == 1
    journal.close()
    again, journal = opened(tmp_path)
    assert state(again) == state(database)
    journal.close()


def test_death_at_any_step_of_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction is killed at each of its calls that change a file. The journal still opens with all data."""

    class Killed(BaseException):
        pass

    database, journal = opened(tmp_path / "whole", segment_bytes_max=700)
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: None)
    for number in range(4):
        write_some(database, 1, seed=number)
        journal.flush()
    journal.close()
    upto = files.zxids(tmp_path / "whole", "journal")[-1]
    steps = 0
    while True:
        target = tmp_path / str(steps)
        shutil.copytree(tmp_path / "whole", target)
        left = steps

        def guarded(call: Any) -> Any:
            def guard(*arguments: Any, **options: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return call(*arguments, **options)

            return guard

        with monkeypatch.context() as patch:
            for name in ("write", "fsync", "rename", "unlink"):
                patch.setattr(os, name, guarded(getattr(os, name)))
            try:
                compact(target, upto)
                finished = True
            except Killed:
                finished = False
        recovered, journal = opened(target)
        assert state(recovered) == state(database), f"killed at step {steps}"
        journal.close()
        if finished:
            break
        steps += 1
    assert steps >= 5


def test_a_snapshot_that_was_not_finished_is_ignored(tmp_path: Path) -> None:
    database, journal = opened(tmp_path)
    write_some(database, 3)
    journal.close()
    (tmp_path / "draft.tmp").write_bytes(b"half of a snapsh")
    again, journal = opened(tmp_path)
    assert state(again) == state(database)
    assert not list(tmp_path.glob("*.tmp"))
    journal.close()


def test_compaction_of_what_is_damaged_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: None)
    database, journal = opened(tmp_path, segment_bytes_max=100)
    write_some(database, 1)
    journal.flush()
    journal.close()
    first = tmp_path / "journal.0000000000000000"
    first.write_bytes(first.read_bytes()[:-1])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(JournalDamaged, match="although other segments follow"):
        compact(tmp_path, database.zxid)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_one_server_at_a_time(tmp_path: Path) -> None:
    _database, journal = opened(tmp_path)
    with pytest.raises(JournalUnusable, match="in use by another server"):
        opened(tmp_path)
    journal.close()
    opened(tmp_path)[1].close()


@pytest.mark.parametrize(("name", "sync"), [("write", False), ("write", True), ("fdatasync", True)])
def test_after_a_failed_write_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sync: bool
) -> None:
    database, journal = opened(tmp_path, sync=sync)
    write_some(database, 1)
    journal.flush()
    acknowledged = state(database)

    def full(*arguments: Any) -> int:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        database.spend_zxid()
        with pytest.raises(OSError, match="no space"):
            journal.flush()
    with pytest.raises(OSError, match="no space"):
        journal.flush()  # also without a further write: a reader would see data that was not kept
    journal.close()
    with pytest.raises(JournalUnusable, match="an earlier write failed"):
        journal.open(database)
    again, journal = opened(tmp_path)
    if name == "write":
        assert state(again) == acknowledged
    journal.close()


def test_sync_comes_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    database, journal = opened(tmp_path, sync=True)
    for count in (1, 2):
        database.spend_zxid()
        database.spend_zxid()
        journal.flush()
        journal.flush()
        assert len(synced) == count  # one for all of them
    journal.close()


async def test_a_full_disk_stops_the_server_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = MemoryZooKeeper(AsyncioNetwork(), SystemClock(), random.Random(1), journal=FileJournal(tmp_path))
    async with server.running():
        clients = [
            ZooKeeperClient(AsyncioNetwork(), SystemClock(), random.Random(1), server.address, 10_000) for _ in range(2)
        ]
        writer, reader = clients
        for client in clients:
            await client.start()
        await writer.create("/a", b"kept")

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ConnectionLoss):
            await writer.set("/a", b"lost")
        assert (await server.failed()).errno == 28
        waiting = asyncio.create_task(reader.get("/a"))  # disconnected, because it would read data that was not kept
        await asyncio.wait((waiting,), timeout=0.2)
        assert not waiting.done() or isinstance(waiting.exception(), ConnectionLoss)
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert lines == [
            "cannot write the journal: No space left on device; the server sends no more answers and stops"
        ]
        monkeypatch.undo()
        for client in clients:
            await client.close()
        await asyncio.gather(waiting, return_exceptions=True)
    recovered, journal = opened(tmp_path)
    assert recovered.tree.nodes["/a"].data == b"kept"
    journal.close()
