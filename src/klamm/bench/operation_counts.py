"""A relay in front of ZooKeeper that counts operations by kind, the same way for any controller.

A multi or multi-read counts as one request, and each operation in it under its own name. Watches set in bulk count one
each. Pings do not count, because they depend on time, not on work. The relay slows connections down, so nothing is
timed while it is in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from klamm.testing.relay import End, Relay, Ways
from klamm.zookeeper.jute import INT, JuteReader, OpCode
from klamm.zookeeper.server.rules import CheckVersion, CreateNode, DeleteNode, SetAcl, SetData, read_multi

_NAMES: Final = {
    OpCode.CREATE: "create",
    OpCode.CREATE2: "create",
    OpCode.DELETE: "delete",
    OpCode.EXISTS: "exists",
    OpCode.GET_DATA: "get",
    OpCode.SET_DATA: "set",
    OpCode.GET_CHILDREN: "children",
    OpCode.GET_CHILDREN2: "children",
    OpCode.SYNC: "sync",
    OpCode.CHECK: "check",
}
_IN_A_MULTI: Final[Mapping[type, str]] = {
    CreateNode: "create",
    DeleteNode: "delete",
    SetData: "set",
    CheckVersion: "check",
    SetAcl: "set_acl",
}


class OperationCounter:
    """Takes the bytes that a client sends on one connection, in pieces of any size."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._pending = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> None:
        self._pending += data
        start = 0
        while len(self._pending) - start >= INT.size:
            end = start + INT.size + INT.unpack_from(self._pending, start)[0]
            if len(self._pending) < end:
                break
            self._count(bytes(self._pending[start + INT.size : end]))
            start = end
        del self._pending[:start]

    def _count(self, frame: bytes) -> None:
        if not self._greeted:
            self._greeted = True  # the first frame requests a session and is not an operation
            return
        reader = JuteReader(frame)
        reader.int32()
        opcode = reader.int32()
        if opcode in (OpCode.PING, OpCode.CLOSE_SESSION, OpCode.AUTH):
            return
        self._counts["requests"] += 1
        if opcode == OpCode.MULTI:
            self._counts.update(_IN_A_MULTI[type(operation)] for operation in read_multi(reader))
        elif opcode == OpCode.MULTI_READ:
            self._counts.update(_reads_in(reader))
        elif opcode in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
            reader.int64()
            self._counts["watch"] += sum(len(reader.strings()) for _ in range(3))
        else:
            self._counts[_NAMES.get(OpCode(opcode), OpCode(opcode).name.lower())] += 1


def _reads_in(reader: JuteReader) -> Counter[str]:
    found: Counter[str] = Counter()
    while True:
        opcode, done, _ = reader.multi_header()
        if done:
            return found
        found[_NAMES[OpCode(opcode)]] += 1
        reader.buffer()
        reader.boolean()


class CountingRelay(Relay):
    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.counts: Counter[str] = Counter()

    def ways(self, client: End, server: End) -> Ways:
        return self.pump(client, server, OperationCounter(self.counts).feed), self.pump(server, client)
