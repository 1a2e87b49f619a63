"""The pure parts of the client: connect string and chroot, frames, the watch registry, bulk splitting and decoding."""

from __future__ import annotations

import pytest

from klamm.model.errors import BadArguments, ConfigError, MarshallingError, NoAuth
from klamm.model.ports import Check, Create, Delete, Node, Set, Stat, WatchEvent, WatchKind
from klamm.zookeeper import jute
from klamm.zookeeper.client import bulk
from klamm.zookeeper.client.address import Chroot, ConnectString, ServerAddress
from klamm.zookeeper.client.connection import FrameBuffer
from klamm.zookeeper.client.watches import EXACT_GROUPS, FRAME_BYTES, WatchRegistry
from klamm.zookeeper.jute import OpCode

STAT = Stat(1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10)
NO_CHROOT = Chroot("")


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "servers", "chroot"),
        [
            ("a", [("a", 2181)], ""),
            ("a:1, b:2", [("a", 1), ("b", 2)], ""),
            ("[::1]:3,[fe80::1]/k", [("::1", 3), ("fe80::1", 2181)], "/k"),
            ("a:1/", [("a", 1)], ""),
            ("a:1,b/x/y/", [("a", 1), ("b", 2181)], "/x/y"),
        ],
    )
    def test_connect_strings(self, text: str, servers: list[tuple[str, int]], chroot: str) -> None:
        expected = ConnectString(tuple(ServerAddress(*server) for server in servers), Chroot(chroot))
        assert ConnectString.parse(text) == expected

    @pytest.mark.parametrize("text", ["", "/k", "a:x", "a:0", "a:70000", ":1", "a:1/k,b:2/k", "[::1", "a/k//x"])
    def test_bad_ones_name_the_key(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"zookeeper\.connect="):
            ConnectString.parse(text)

    def test_chroot_is_cut_at_element_borders(self) -> None:
        chroot = Chroot("/kafka")
        assert [chroot.absolute(p) for p in ("/", "/a", "/kafka")] == ["/kafka", "/kafka/a", "/kafka/kafka"]
        assert [chroot.relative(p) for p in ("/kafka", "/kafka/a", "/kafka2/a")] == ["/", "/a", "/kafka2/a"]
        assert (NO_CHROOT.absolute("/"), NO_CHROOT.relative("/"), NO_CHROOT.relative("/a")) == ("/", "/", "/a")

    def test_a_path_without_its_slash_is_refused(self) -> None:
        with pytest.raises(BadArguments):
            Chroot("/kafka").absolute("a")


def test_frames_come_out_whole_however_they_come_in() -> None:
    payloads = [b"a" * size for size in (1, 70_000, 5, 300)]
    stream = b"".join(jute.frame(payload) for payload in payloads)
    for size in (1, 3, 4096, len(stream)):
        frames, found = FrameBuffer(), list[bytes]()
        for start in range(0, len(stream), size):
            found += frames.feed(stream[start : start + size])
        assert found == payloads


@pytest.mark.parametrize("length", [0, -1, 101])
def test_frames_of_impossible_length_are_refused(length: int) -> None:
    with pytest.raises(MarshallingError):
        FrameBuffer(100).feed(jute.INT.pack(length))


class TestWatchRegistry:
    def test_an_event_ends_the_watches_of_its_kind(self) -> None:
        def fired(kind: WatchKind) -> list[str]:
            registry, seen = WatchRegistry(), list[str]()
            registry.add_data(("/a",), lambda _: seen.append("data"), 1, exists=True)
            registry.add_child("/a", lambda _: seen.append("child"), 1)
            registry.add_data(("/b",), lambda _: seen.append("other path"), 1, exists=True)
            event = WatchEvent(kind, "/a")
            for watcher in (*registry.take(event), *registry.take(event)):
                watcher(event)
            return seen

        assert fired(WatchKind.DATA_CHANGED) == ["data"]
        assert fired(WatchKind.CHILDREN_CHANGED) == ["child"]
        assert fired(WatchKind.DELETED) == ["data", "child"]

    def test_the_same_watcher_is_called_once(self) -> None:
        registry, seen = WatchRegistry(), list[WatchEvent]()
        watcher = seen.append
        registry.add_data(("/a",), watcher, 1, exists=False)
        registry.add_data(("/a",), watcher, 2, exists=False)
        registry.add_child("/a", watcher, 2)
        assert registry.take(WatchEvent(WatchKind.DELETED, "/a")) == [watcher]
        assert len(registry) == 0

    def test_large_sets_are_split_below_the_frame_limit(self) -> None:
        registry = WatchRegistry()
        paths = [f"/brokers/topics/topic-{i:05d}" for i in range(10_000)]
        for path in paths:
            registry.add_data((path,), print, 7, exists=True)
        bodies = list(registry.set_watches())
        assert len(bodies) == 3
        assert max(map(len, bodies)) <= FRAME_BYTES + 100
        found: list[str] = []
        for body in bodies:
            reader = jute.JuteReader(body)
            assert reader.int64() == 7
            found += reader.strings()
            assert (reader.strings(), reader.strings(), reader.remaining) == ([], [], 0)
        assert found == paths

    def test_very_many_zxids_share_frames_from_the_smallest_on(self) -> None:
        registry = WatchRegistry()
        for zxid in range(1000, 1000 + EXACT_GROUPS + 1):
            registry.add_child(f"/{zxid}", print, zxid)
        (body,) = registry.set_watches()
        assert jute.LONG.unpack_from(body)[0] == 1000


class TestBulk:
    def test_split_by_count_and_by_bytes(self) -> None:
        frame = bulk.FrameLimit(500, 128 * 1024)
        assert list(bulk.split([b"x"] * 1001, frame)) == [(0, 500), (500, 1000), (1000, 1001)]
        large = b"x" * 60_000
        assert list(bulk.split([large] * 5, frame)) == [(0, 2), (2, 4), (4, 5)]
        assert list(bulk.split([b"x" * 500_000, b"y", b"z" * 500_000], frame)) == [(0, 1), (1, 2), (2, 3)]
        assert list(bulk.split([], frame)) == []

    def test_nodes(self) -> None:
        header = jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, 0)
        missing = jute.MULTI_ERROR.pack(-1, False, -101, -101)
        body = b"".join(
            (
                b"head",
                header + jute.pack_buffer(b"abc") + jute.pack_stat(STAT),
                missing,
                header + jute.pack_buffer(None) + jute.pack_stat(STAT),
                header + jute.pack_buffer(b"") + jute.pack_stat(STAT),
                jute.MULTI_END,
            )
        )
        nodes = bulk.unpack_nodes(body, 4, ["/1", "/2", "/3", "/4"])
        assert nodes == [Node(b"abc", STAT), None, Node(None, STAT), Node(b"", STAT)]
        assert isinstance(nodes[0], Node)
        assert isinstance(nodes[0].stat, Stat)
        for length in range(4, len(body)):
            with pytest.raises(MarshallingError):
                bulk.unpack_nodes(body[:length], 4, ["/1", "/2", "/3", "/4"])

    def test_children(self) -> None:
        header = jute.MULTI_HEADER.pack(OpCode.GET_CHILDREN, False, 0)
        missing = jute.MULTI_ERROR.pack(-1, False, -101, -101)
        body = header + jute.pack_strings(["a", "ü"]) + missing + header + jute.pack_strings([]) + jute.MULTI_END
        assert bulk.unpack_children(body, 0, ["/1", "/2", "/3"]) == [["a", "ü"], None, []]
        for length in range(len(body)):
            with pytest.raises(MarshallingError):
                bulk.unpack_children(body[:length], 0, ["/1", "/2", "/3"])

    def test_a_refused_read_is_raised_with_its_path(self) -> None:
        body = jute.MULTI_ERROR.pack(-1, False, -102, -102) + jute.MULTI_END
        with pytest.raises(NoAuth, match="/secret"):
            bulk.unpack_nodes(body, 0, ["/secret"])

    def test_multi_results_of_each_kind(self) -> None:
        def header(opcode: OpCode) -> bytes:
            return jute.MULTI_HEADER.pack(opcode, False, 0)

        body = b"".join(
            (
                header(OpCode.CHECK),
                header(OpCode.CREATE) + jute.pack_string("/k/a-0000000001"),
                header(OpCode.SET_DATA) + jute.pack_stat(STAT),
                header(OpCode.DELETE),
                header(OpCode.CREATE2) + jute.pack_string("/k/b") + jute.pack_stat(STAT),
                jute.MULTI_END,
            )
        )
        ops = [Check("/c", 1), Create("/a-"), Set("/s", b""), Delete("/d"), Create("/b")]
        assert bulk.unpack_multi(body, 0, ops, Chroot("/k")) == [None, "/a-0000000001", STAT, None, "/b"]
        for length in range(len(body)):
            with pytest.raises(MarshallingError):
                bulk.unpack_multi(body[:length], 0, ops, Chroot("/k"))

    @pytest.mark.parametrize("fenced", [False, True])
    def test_many_sets(self, fenced: bool) -> None:
        fence = jute.MULTI_HEADER.pack(OpCode.CHECK, False, 0) if fenced else b""
        done = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, 0)
        stats = [STAT._replace(version=version) for version in range(3)]
        body = b"head" + fence + b"".join([done + jute.pack_stat(stat) for stat in stats]) + jute.MULTI_END
        ops = [*([Check("/c", 1)] if fenced else []), Set("/1", b""), Set("/2", b""), Set("/3", b"")]
        results = bulk.unpack_multi(body, 4, ops, Chroot(""))
        assert results == [*([None] if fenced else []), *stats]
        assert all(type(result) is Stat for result in results[-3:])
        for length in range(4, len(body)):
            with pytest.raises(MarshallingError):
                bulk.unpack_multi(body[:length], 4, ops, Chroot(""))
        second = 4 + len(fence) + len(done) + 68
        with pytest.raises(MarshallingError, match="type 7 in a multi"):
            bulk.unpack_multi(body[: second + 3] + b"\x07" + body[second + 4 :], 4, ops, Chroot(""))

    def test_a_batch_beyond_the_bytes_of_a_frame_is_split_and_each_part_fenced(self) -> None:
        ops = [Set(f"/{n}", b"x" * 120_000, n) for n in range(5)]
        check = bulk.pack_ops([Check("/c", 1)], Chroot(""))[0]
        parts = list(bulk.multis(ops, Chroot(""), [Check("/c", 1)]))
        assert [(start, stop) for start, stop, _ in parts] == [(0, 2), (2, 4), (4, 5)]
        for start, stop, body in parts:
            assert body == check + b"".join(bulk.pack_ops(ops[start:stop], Chroot(""))) + jute.MULTI_END

    def test_relative_paths_are_refused_and_the_root_is_the_chroot(self) -> None:
        (_, _, body), *_ = bulk.multi_reads(OpCode.GET_DATA, ["/", "/a"], Chroot("/k"))
        header = jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, -1)
        assert body == b"".join(
            (
                header,
                jute.pack_path_and_watch("/k", False),
                header,
                jute.pack_path_and_watch("/k/a", False),
                jute.MULTI_END,
            )
        )
        with pytest.raises(BadArguments, match="must start with /"):
            list(bulk.multi_reads(OpCode.GET_DATA, ["a"], Chroot("/k")))
