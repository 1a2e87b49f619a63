"""The parts of `klamm bench controller` that decide what a figure means."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

from klamm.bench import stubs
from klamm.bench.contenders import RIVALS, KlammContender, kafka_contender
from klamm.bench.operation_counts import OperationCounter
from klamm.bench.stubs import BenchFailed, quiet
from klamm.model.ports import OPEN_ACL
from klamm.zookeeper import jute
from klamm.zookeeper.jute import OpCode


def _stream() -> bytes:
    def in_multi(opcode: OpCode, body: bytes) -> bytes:
        return jute.MULTI_HEADER.pack(opcode, False, -1) + body

    multi = [
        in_multi(OpCode.CHECK, jute.pack_path_and_version("/controller_epoch", 1)),
        in_multi(OpCode.SET_DATA, jute.pack_set_data("/a", b"x", 0)),
        in_multi(OpCode.SET_DATA, jute.pack_set_data("/b", None, 0)),
        in_multi(OpCode.CREATE, jute.pack_create("/c", b"", OPEN_ACL, 0)),
        in_multi(OpCode.DELETE, jute.pack_path_and_version("/d", -1)),
    ]
    reads = [in_multi(OpCode.GET_DATA, jute.pack_path_and_watch(path, False)) for path in ("/a", "/b", "/c")]
    watches = jute.pack_set_watches(7, ["/a", "/b"], ["/c"], [])
    return b"".join(
        [
            jute.frame(jute.ConnectRequest(0, 6_000).pack()),
            jute.request_frame(jute.XID_PING, OpCode.PING),
            jute.request_frame(1, OpCode.MULTI, b"".join([*multi, jute.MULTI_END])),
            jute.request_frame(2, OpCode.MULTI_READ, b"".join([*reads, jute.MULTI_END])),
            jute.request_frame(3, OpCode.GET_DATA, jute.pack_path_and_watch("/a", True)),
            jute.request_frame(jute.XID_SET_WATCHES, OpCode.SET_WATCHES, watches),
            jute.request_frame(4, OpCode.CLOSE_SESSION),
        ]
    )


@pytest.mark.parametrize("piece", [1, 3, 50, 10_000])
def test_operations_are_counted_by_kind_however_the_bytes_come(piece: int) -> None:
    counts: Counter[str] = Counter()
    counter, stream = OperationCounter(counts), _stream()
    for start in range(0, len(stream), piece):
        counter.feed(stream[start : start + piece])
    assert counts == {"requests": 4, "check": 1, "set": 2, "create": 1, "delete": 1, "get": 4, "watch": 3}


class Stub:
    def __init__(self) -> None:
        self.last_received = 0.0


class Controller:
    """Busy until told otherwise."""

    def __init__(self) -> None:
        self.is_busy, self.is_alive, self._spent = True, True, 0.0

    def cpu_seconds(self) -> float:
        self._spent += 1.0 if self.is_busy else 0.0
        return self._spent

    def require_alive(self) -> None:
        if not self.is_alive:
            raise BenchFailed("it ended")


async def test_a_phase_ends_when_the_stubs_hear_nothing_and_the_controller_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stubs, "QUIET_S", 0.06)
    now = time.monotonic
    stub, controller, since = Stub(), Controller(), now()
    waiting = asyncio.create_task(quiet([stub], since, controller, answer_at_once))  # type: ignore[list-item]
    stub.last_received = since + 0.001
    await asyncio.sleep(0.5)
    assert not waiting.done()  # silent but busy, like Kafka between two requests
    stub.last_received = heard = now()
    controller.is_busy = False
    assert await waiting == pytest.approx(heard - since)


async def test_silence_does_not_count_while_zookeeper_is_silent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs, "QUIET_S", 0.06)
    monkeypatch.setattr(stubs, "PAUSE_S", 0.02)
    stub, controller, since, pauses = Stub(), Controller(), time.monotonic(), [0.1] * 3
    controller.is_busy = False
    stub.last_received = since + 0.001

    async def answer() -> None:
        if pauses:
            await asyncio.sleep(pauses.pop())
            if not pauses:
                stub.last_received = time.monotonic()

    assert await quiet([stub], since, controller, answer) > 0.3  # type: ignore[list-item]


async def answer_at_once() -> None:
    pass


async def test_a_controller_that_dies_ends_the_wait() -> None:
    controller = Controller()
    controller.is_alive = False
    with pytest.raises(BenchFailed, match="it ended"):
        await quiet([Stub()], 0.0, controller, answer_at_once)  # type: ignore[list-item]


def test_an_unknown_rival_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=f"unknown rival apache-kafka-0.8; choose one of {', '.join(RIVALS)}"):
        kafka_contender("apache-kafka-0.8", tmp_path)


def test_without_java_there_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchFailed, match="install Java 17"):
        kafka_contender(RIVALS[0], tmp_path)


def test_events_are_counted_once_and_the_longest_hold_is_found(tmp_path: Path) -> None:
    contender = KlammContender(tmp_path)
    assert contender.new_events() == (0, 0.0, 0.0)
    contender.process.data_directory.mkdir(parents=True)
    events = contender.process.data_directory / "state-change.json"
    held = (
        {"event": "loop-held", "duration_ms": ms, "counts": {"busy_ms": busy}} for ms, busy in ((61.04, 2), (55, 31))
    )
    events.write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in (*held, {})))
    assert contender.new_events() == (3, 61.0, 31)
    with events.open("a") as file:
        file.write("{}\n")
    assert contender.new_events() == (1, 0.0, 0.0)
