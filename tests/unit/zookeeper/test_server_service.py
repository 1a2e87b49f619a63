"""Malformed input to the service: it replies to each request or closes the connection, and never crashes."""

from __future__ import annotations

import random
import struct

import pytest

from klamm.model.ports import OPEN_ACL
from klamm.zookeeper import jute
from klamm.zookeeper.jute import ConnectRequest, OpCode
from klamm.zookeeper.server.client_connection import ServedConnection
from klamm.zookeeper.server.service import ZooKeeperService


class StandingClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 5.0


class Collector:
    def __init__(self) -> None:
        self.output = b""
        self.closed = False

    def send(self, frames: list[bytes]) -> None:
        assert not self.closed
        self.output += b"".join(frames)

    def close(self) -> None:
        self.closed = True

    def replies(self) -> list[tuple[int, int, int]]:
        """(xid, zxid, error) of each frame. Clears the output."""
        found, position = [], 0
        while position < len(self.output):
            (length,) = jute.INT.unpack_from(self.output, position)
            found.append(jute.REPLY_HEADER.unpack_from(self.output, position + 4))
            position += 4 + length
        assert position == len(self.output)
        self.output = b""
        return found  # type: ignore[return-value]


def connected(service: ZooKeeperService) -> tuple[ServedConnection, Collector]:
    sink = Collector()
    connection = service.connection(sink, "127.0.0.1")
    connection.data_received(jute.frame(ConnectRequest(0, 4000).pack()))
    sink.output = b""
    return connection, sink


def multi(*ops: tuple[int, bytes]) -> bytes:
    return b"".join(jute.MULTI_HEADER.pack(opcode, False, -1) + body for opcode, body in ops) + jute.MULTI_END


CREATE = jute.pack_create("/a/b", b"data", OPEN_ACL, 0)
SAMPLES: dict[int, bytes] = {
    OpCode.CREATE: CREATE,
    OpCode.CREATE2: jute.pack_create("/a", None, OPEN_ACL, 3),
    OpCode.CREATE_CONTAINER: jute.pack_create("/c", b"", OPEN_ACL, 4),
    OpCode.CREATE_TTL: CREATE + bytes(8),
    OpCode.DELETE: jute.pack_path_and_version("/a/b", -1),
    OpCode.EXISTS: jute.pack_path_and_watch("/a/b", True),
    OpCode.GET_DATA: jute.pack_path_and_watch("/a", True),
    OpCode.SET_DATA: jute.pack_set_data("/a", b"xyz", -1),
    OpCode.GET_ACL: jute.pack_string("/a"),
    OpCode.SET_ACL: jute.pack_string("/a") + jute.pack_acl(OPEN_ACL) + jute.INT.pack(-1),
    OpCode.GET_CHILDREN: jute.pack_path_and_watch("/", True),
    OpCode.GET_CHILDREN2: jute.pack_path_and_watch("/", False),
    OpCode.SYNC: jute.pack_string("/a"),
    OpCode.MULTI: multi((OpCode.SET_DATA, jute.pack_set_data("/a", b"1", -1)), (OpCode.CREATE, CREATE)),
    OpCode.MULTI_READ: multi((OpCode.GET_DATA, jute.pack_path_and_watch("/a", False)), (8, b"\0\0\0\1/\0")),
    OpCode.CHECK_WATCHES: jute.pack_path_and_version("/a", 3),
    OpCode.REMOVE_WATCHES: jute.pack_path_and_version("/a", 3),
    OpCode.AUTH: jute.pack_auth("digest", b"user:secret"),
    OpCode.SET_WATCHES: jute.pack_set_watches(3, ["/a"], ["/b"], ["/"]),
    OpCode.SET_WATCHES2: jute.pack_set_watches(3, ["/a"], ["/b"], ["/"]) + jute.pack_strings(["/"]) * 2,
    OpCode.GET_EPHEMERALS: jute.pack_string("/"),
    OpCode.GET_ALL_CHILDREN_NUMBER: jute.pack_string("/"),
    OpCode.ADD_WATCH: jute.pack_path_and_version("/", 1),
    OpCode.WHO_AM_I: b"",
    OpCode.RECONFIG: bytes(20),
    OpCode.SASL: jute.pack_buffer(b""),
}


def mutated(body: bytes, choice: random.Random) -> bytes:
    data = bytearray(body)
    for _ in range(choice.randrange(1, 4)):
        match choice.randrange(4):
            case 0 if data:
                data[choice.randrange(len(data))] = choice.randrange(256)
            case 1 if data:
                del data[choice.randrange(len(data)) :]
            case 2:
                at = choice.randrange(len(data) + 1)
                data[at:at] = choice.randbytes(choice.randrange(5))
            case 3 if len(data) >= 4:
                at = choice.randrange(len(data) - 3)
                data[at : at + 4] = struct.pack(">i", choice.choice((-1, 0, 1, -(2**31), 2**31 - 1, len(data))))
    return bytes(data)


@pytest.mark.case("ZK-23")
@pytest.mark.parametrize("opcode", SAMPLES)
def test_mutated_requests(opcode: int) -> None:
    choice = random.Random(opcode)
    service = ZooKeeperService(StandingClock(), random.Random(1))
    connection, sink = connected(service)
    for xid in range(1, 600):
        body = mutated(SAMPLES[opcode], choice) if xid % 10 else SAMPLES[opcode]
        connection.data_received(jute.request_frame(xid, opcode, body))
        replies = [reply for reply in sink.replies() if reply[0] != jute.XID_EVENT]
        assert [reply[0] for reply in replies] == [xid]
        if sink.closed:
            connection, sink = connected(service)
    assert connection.open


def test_bytes_one_by_one() -> None:
    service = ZooKeeperService(StandingClock(), random.Random(1))
    sink = Collector()
    connection = service.connection(sink, "127.0.0.1")
    stream = jute.frame(ConnectRequest(0, 4000).pack()) + b"".join(
        jute.request_frame(xid, OpCode.CREATE, jute.pack_create(f"/n{xid}", b"", OPEN_ACL, 0)) for xid in range(1, 20)
    )
    for byte in stream:
        connection.data_received(bytes([byte]))
    assert len(service.database.tree) == 5 + 19


def test_noise_instead_of_a_handshake() -> None:
    choice = random.Random(3)
    service = ZooKeeperService(StandingClock(), random.Random(1))
    for _ in range(2000):
        sink = Collector()
        connection = service.connection(sink, "127.0.0.1")
        noise = choice.randbytes(choice.randrange(1, 60))
        connection.data_received(jute.frame(noise) if choice.random() < 0.7 else noise)
        connection.connection_lost()
    assert not service.connections
    assert len(service.database.tree) == 5


@pytest.mark.case("ZK-22")
def test_delete_container_is_not_for_clients() -> None:
    service = ZooKeeperService(StandingClock(), random.Random(1))
    connection, sink = connected(service)
    connection.data_received(jute.request_frame(1, OpCode.CREATE, jute.pack_create("/a", b"", OPEN_ACL, 0)))
    connection.data_received(jute.request_frame(2, OpCode.DELETE_CONTAINER, jute.pack_string("/a")))
    assert sink.replies()[1] == (2, -1, -6)
    assert sink.closed
    assert "/a" in service.database.tree.nodes
