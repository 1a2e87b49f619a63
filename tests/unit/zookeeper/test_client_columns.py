"""Bulk calls in columns send the same bytes as calls with objects, and read the same answers."""

from __future__ import annotations

import random

import pytest

from klamm.model.errors import BadArguments, BadVersion, MarshallingError, NoAuth, RuntimeInconsistency
from klamm.model.ports import NO_NODE_VERSION, Acl, Check, Create, CreateMode, Fence, Node, Set, Sets, Stat
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.zookeeper import jute
from klamm.zookeeper.client import ZooKeeperClient, bulk
from klamm.zookeeper.client.address import Chroot
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.memory import MemoryZooKeeper

FENCE = Check("/controller_epoch", 7)


def sets_of(count: int, letter: str = "t") -> Sets:
    paths = [f"/brokers/topics/{letter}/partitions/{n}/state" for n in range(count)]
    return Sets(paths, [b'{"leader":%d}' % (n % 5) for n in range(count)], [n % 3 for n in range(count)])


@pytest.mark.parametrize("chroot", ["", "/kafka", "/käfka"])
@pytest.mark.parametrize("letter", ["t", "ü", "漢"])
def test_sets_are_packed_as_their_objects(chroot: str, letter: str) -> None:
    sets = sets_of(2_203, letter)
    columns = list(bulk.multis(sets, Chroot(chroot), [FENCE]))
    assert columns == list(bulk.multis(list(sets), Chroot(chroot), [FENCE]))
    assert [body[:2] for body in columns] == [(0, 1_000), (1_000, 2_000), (2_000, 2_203)]


def test_sets_that_are_too_many_bytes_for_a_frame_are_split() -> None:
    sets = Sets([f"/n/{n}" for n in range(600)], [bytes(1_000)] * 600, [0] * 600)
    columns = list(bulk.multis(sets, Chroot(""), [FENCE]))
    assert columns == list(bulk.multis(list(sets), Chroot(""), [FENCE])) and len(columns) == 3


@pytest.mark.parametrize("path", ["/a", "/", "/ü", f"/{'x' * 400}"])
def test_gets_are_packed_as_one_by_one(path: str) -> None:
    paths = [path, "/brokers", path] * 300
    for start, stop, body in bulk.multi_reads(OpCode.GET_DATA, paths, Chroot("/k")):
        packed = bulk.pack_reads(OpCode.GET_DATA, paths[start:stop], Chroot("/k"))
        assert body == b"".join([*packed, jute.MULTI_END])


def reply_of(nodes: list[Node | None]) -> bytes:
    parts = []
    for node in nodes:
        if node is None:
            parts.append(jute.MULTI_ERROR.pack(-1, False, -101, -101))
        else:
            header = jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, 0)
            parts.append(header + jute.pack_buffer(node.data) + jute.pack_stat(node.stat))
    return b"".join([*parts, jute.MULTI_END])


def test_contents_are_the_nodes_without_the_rest_of_their_stats() -> None:
    rng = random.Random(4)
    for _ in range(50):
        nodes: list[Node | None] = []
        for _ in range(rng.randrange(1, 20)):
            stat = Stat(*(rng.randrange(-(2**31), 2**31) for _ in range(11)))
            data = rng.choice([None, b"", rng.randbytes(rng.randrange(200))])
            nodes.append(rng.choice([Node(data, stat), Node(b"{}", stat), None]))
        body, paths = b"head" + reply_of(nodes), [f"/{n}" for n in range(len(nodes))]
        assert bulk.unpack_nodes(body, 4, paths) == nodes
        contents = bulk.unpack_contents(body, 4, paths)
        assert contents.data == [node and node.data for node in nodes]
        assert contents.versions == [node.stat.version if node else NO_NODE_VERSION for node in nodes]
        for length in range(4, len(body), 7):
            with pytest.raises(MarshallingError):
                bulk.unpack_contents(body[:length], 4, paths)
        with pytest.raises(MarshallingError):
            bulk.unpack_contents(body + b"\0", 4, paths)


def test_an_error_in_a_read_names_its_path() -> None:
    body = jute.MULTI_ERROR.pack(-1, False, -102, -102) + jute.MULTI_END
    with pytest.raises(NoAuth) as caught:
        bulk.unpack_contents(body, 0, ["/secret"])
    assert caught.value.path == "/secret"


async def test_on_a_server_sets_are_applied_or_say_who_is_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = (AsyncioNetwork(), SystemClock(), random.Random(1))
    async with MemoryZooKeeper(*ports).running() as server:
        client = ZooKeeperClient(*ports, f"127.0.0.1:{server.port}/k", 6_000)
        async with client.running() as zk:
            await zk.ensure_path("/")
            monkeypatch.setattr(bulk, "WRITE_FRAME", bulk.WRITE_FRAME._replace(operations=500))
            paths = [f"/n{n}" for n in range(1_001)]
            await zk.write_many([Create("/epoch"), *(Create(path, b"") for path in paths)])
            fence = Fence("/epoch", 0)
            versions = [0] * 1_001
            assert await zk.write_many(Sets(paths, [b"1"] * 1_001, versions), fence) == [None] * 1_001
            contents = await zk.read_many([*paths, "/absent"])
            assert contents.data == [b"1"] * 1_001 + [None]
            assert contents.versions == [1] * 1_001 + [NO_NODE_VERSION]

            versions = [1] * 1_001
            versions[700] = 0
            results = await zk.write_many(Sets(paths, [b"2"] * 1_001, versions), fence)
            assert results[:500] == [None] * 500 and results[1_000:] == [None]
            assert {type(r) for n, r in enumerate(results) if 500 <= n < 1_000 and n != 700} == {RuntimeInconsistency}
            assert isinstance(results[700], BadVersion) and results[700].path == "/n700"
            assert (await zk.read_many(paths)).versions == [2] * 500 + [1] * 500 + [2]

            with pytest.raises(BadVersion) as caught:
                await zk.write_many(Sets(paths[:1], [b"3"], [2]), Fence("/epoch", 5))
            assert caught.value.path == "/epoch"
            with pytest.raises(BadArguments):
                await zk.write_many(Sets([*paths, "relative"], [b"3"] * 1_002, [2] * 1_002), fence)
            assert (await zk.read_many(paths)).versions == [2] * 500 + [1] * 500 + [2]


def test_columns_read_as_objects() -> None:
    sets = Sets(["/a", "/b"], [b"1", b"2"], [3, 4])
    assert list(sets) == [Set("/a", b"1", 3), Set("/b", b"2", 4)]
    assert list(sets[1:]) == [Set("/b", b"2", 4)] and len(sets) == 2


@pytest.mark.parametrize("chroot", ["", "/k"])
def test_creates_in_bulk_are_packed_as_one(chroot: str) -> None:
    read_only = (Acl(1, "world", "anyone"),)
    ops = [
        Create("/a"),
        Create("/ü", b""),
        Create("/c", b"data", CreateMode.EPHEMERAL_SEQUENTIAL, read_only),
        Create("/", b"the chroot itself"),
    ]
    for op, packed in zip(ops, bulk.pack_ops(ops, Chroot(chroot)), strict=True):
        header = jute.MULTI_HEADER.pack(OpCode.CREATE, False, -1)
        assert packed == header + jute.pack_create(Chroot(chroot).absolute(op.path), op.data, op.acl, op.mode)
