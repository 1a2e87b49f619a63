"""The life of a session on a scripted server in memory and in virtual time. All times are exact."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from klamm.model.errors import (
    AuthFailed,
    BadArguments,
    BadVersion,
    ConnectionLoss,
    NodeExists,
    SessionExpired,
    ZooKeeperError,
)
from klamm.model.ports import (
    Check,
    CreateMode,
    Fence,
    Set,
    WatchEvent,
    WatchKind,
)
from klamm.simulation.loop import run_in_virtual_time
from klamm.zookeeper import jute
from klamm.zookeeper.client import SessionState, ZooKeeperClient
from klamm.zookeeper.jute import OpCode

from .scripted import (
    STAT,
    Answer,
    Link,
    Listener,
    ScriptedServer,
    client_of,
    drop,
    get_reply,
    now,
    play,
    reply,
)


def test_a_session_begins_with_a_probe_alone_and_ends_with_the_servers_word() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        assert (client.session_id, client.session_timeout_ms, client.state) == (100, 6000, SessionState.CONNECTED)
        _, _, request = server.connects[0]
        assert request == jute.ConnectRequest(0, 6000, 0, bytes(16), False)

    server = play(scenario)
    assert server.links[0].opcodes() == [OpCode.MULTI_READ, OpCode.CLOSE_SESSION]
    assert not server.links[0].open


def test_pings_fill_silence_at_a_third_of_the_timeout() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        await asyncio.sleep(6.5)
        assert server.pings == [2.0, 4.0, 6.0]
        assert client.silence() == pytest.approx(0.5)
        assert len(server.links) == 1

    play(scenario)


def test_silence_counts_from_when_the_answered_request_was_sent() -> None:
    """The process may have been suspended while the answer lay in its socket, and its session may have ended since."""

    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        def answer_late(link: Link, xid: int, body: bytes) -> None:
            frame = jute.reply_frame(xid, server.zxid, 0, jute.pack_string("/"))
            asyncio.get_running_loop().call_later(3.5, link.send, frame)

        server.mute_pings = True
        server.answers[OpCode.SYNC] = answer_late
        await client.sync("/")
        assert client.silence() == pytest.approx(3.5, abs=0.01)
        client.drop_connection()
        await asyncio.sleep(0.1)
        assert len(server.connects) == 2
        assert client.silence() < 0.2, "the handshake was answered at once"

    play(scenario)


def test_silence_counts_from_when_the_answered_ping_was_sent() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        server.mute_pings = True
        await asyncio.sleep(2.5)
        assert server.pings == [2.0]
        server.links[0].send(jute.reply_frame(jute.XID_PING, server.zxid, 0))
        await asyncio.sleep(0.5)
        assert client.silence() == pytest.approx(1.0)

    play(scenario)


def test_a_silent_connection_is_dropped_at_two_thirds_and_the_session_resumed_on_the_next_server() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        server.zxid = 77
        server.answers[OpCode.SYNC] = reply(jute.pack_string("/"))
        await client.sync("/")
        server.mute = True
        await asyncio.sleep(3.9)
        assert len(server.connects) == 1
        await asyncio.sleep(0.2)
        server.mute = False
        (_, first, _), (dropped_at, second, resumed) = server.connects[:2]
        assert dropped_at == 4.0
        assert {first, second} == {"a", "b"}
        assert (resumed.session_id, resumed.password, resumed.last_zxid_seen) == (100, b"p" * 16, 77)

    play(scenario, "a:1,b:2")


def test_in_flight_is_lost_and_what_comes_later_waits_for_the_next_connection() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        in_flight = asyncio.create_task(client.set("/a", b"x"))
        await asyncio.sleep(0.1)
        server.down = True
        server.links[0].abort()
        with pytest.raises(ConnectionLoss, match="/a"):
            await in_flight
        server.answers[OpCode.GET_DATA] = reply(get_reply(b"later"))
        waiting = asyncio.create_task(client.get("/a"))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        server.down = False
        assert (await waiting).data == b"later"
        assert (client.session_id, client.disconnections, client.expirations) == (100, 1, 0)

    play(scenario)


@pytest.mark.case("ZKC-16")
def test_without_any_server_for_four_thirds_of_the_timeout_the_session_is_over() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        listener = Listener(server)
        client.add_session_listener(listener)
        server.down = True
        server.links[0].abort()
        await asyncio.sleep(0)
        lost_at = now()
        with pytest.raises(SessionExpired):
            await client.get("/a")
        assert now() - lost_at == pytest.approx(8.0)
        await asyncio.sleep(0.01)
        assert listener.seen == ["before, 1 made"]
        with pytest.raises(SessionExpired):  # between two sessions no request waits
            await client.get("/a")
        server.down = False
        await asyncio.sleep(2.0)
        assert listener.seen == ["before, 1 made", "after, 2 made"]
        _, _, request = server.connects[-1]
        assert (request.session_id, request.last_zxid_seen, request.password) == (0, 0, bytes(16))
        assert (client.session_id, client.expirations) == (101, 1)

    play(scenario)


def test_expiry_by_the_servers_word() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        listener = Listener(server)
        client.add_session_listener(listener)
        answer_with_node(server, client)
        await client.get("/watched", lambda event: listener.seen.append("watch"))
        server.gone.add(100)
        server.links[0].abort()
        await asyncio.sleep(0.1)
        assert listener.seen == ["before, 1 made", "after, 2 made"]
        assert client.watch_count == 0
        assert OpCode.SET_WATCHES not in server.links[-1].opcodes()

    play(scenario)


def answer_with_node(server: ScriptedServer, client: ZooKeeperClient) -> None:
    server.answers[OpCode.GET_DATA] = reply(get_reply(b"x"))
    server.answers[OpCode.EXISTS] = reply(code=-101)
    server.answers[OpCode.GET_CHILDREN2] = reply(jute.pack_strings(["c"]) + jute.pack_stat(STAT))
    server.answers[OpCode.SET_WATCHES] = reply()


def test_no_new_session_is_asked_for_before_every_listener_has_put_the_old_one_away() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        slow, listener = Listener(server), Listener(server)
        put_away = asyncio.Event()

        async def before_new_session() -> None:
            await put_away.wait()

        slow.before_new_session = before_new_session  # type: ignore[method-assign]
        client.add_session_listener(slow)
        client.add_session_listener(listener)
        server.gone.add(100)
        server.links[0].abort()
        await asyncio.sleep(5)
        assert (len(server.connects), listener.seen) == (
            2,
            [],
        )  # the second learned that its session is gone
        put_away.set()
        await asyncio.sleep(0.1)
        assert listener.seen == ["before, 1 made", "after, 2 made"]

    play(scenario)


def test_another_session_id_is_no_resumption() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        listener = Listener(server)
        client.add_session_listener(listener)
        shake = server._shake_hands

        def forgetful(link: Link, request: jute.ConnectRequest) -> None:
            shake(link, request._replace(session_id=0))

        server._shake_hands = forgetful  # type: ignore[method-assign]
        server.links[0].abort()
        await asyncio.sleep(0.1)
        assert client.expirations == 1
        assert listener.seen[0] == "before, 2 made"

    play(scenario)


def test_what_runs_after_a_new_session_may_lose_its_connection_and_still_ends() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        listener = Listener(server)
        client.add_session_listener(listener)
        server.answers[OpCode.SET_DATA] = drop

        async def register() -> None:
            with pytest.raises(ConnectionLoss):
                await client.set("/a", b"")
            server.answers[OpCode.SET_DATA] = reply(jute.pack_stat(STAT))
            await client.set("/a", b"")

        listener.then = register
        server.gone.add(100)
        server.links[0].abort()
        await asyncio.sleep(1)
        assert listener.seen == ["before, 1 made", "after, 2 made"]

    play(scenario)


def test_a_second_expiry_waits_for_the_first_ones_listeners() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        listener = Listener(server)
        client.add_session_listener(listener)

        async def register() -> None:
            listener.then = None
            server.gone.add(101)
            with pytest.raises(ZooKeeperError):
                await client.set("/never answered", b"")
            await asyncio.sleep(0.5)

        listener.then = register
        server.gone.add(100)
        server.links[0].abort()
        await asyncio.sleep(0.2)
        server.links[-1].abort()
        await asyncio.sleep(2)
        assert listener.seen == ["before, 1 made", "after, 2 made", "before, 2 made", "after, 3 made"]

    play(scenario)


def test_watches_are_set_again_from_the_zxid_of_their_own_read() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        answer_with_node(server, client)
        server.zxid = 20
        await client.get("/data", lambda _: None)
        server.zxid = 30
        await client.exists("/missing", lambda _: None)
        await client.children("/dir", lambda _: None)
        server.zxid = 99
        await client.get("/unwatched")
        server.links[0].abort()
        await asyncio.sleep(0)
        await client.get("/unwatched")
        sent = [body for _, opcode, body in server.links[1].frames if opcode is OpCode.SET_WATCHES]
        assert sent == [
            jute.pack_set_watches(20, ["/data"], [], []),
            jute.pack_set_watches(30, [], ["/missing"], ["/dir"]),
        ]
        assert server.links[1].opcodes()[-1] is OpCode.GET_DATA  # waiting requests follow the watches
        assert server.connects[1][2].last_zxid_seen == 99

    play(scenario)


def test_an_event_in_the_packet_of_the_reply_that_set_its_watch_is_delivered() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        event = WatchEvent(WatchKind.DATA_CHANGED, "/kafka/a")
        server.answers[OpCode.GET_DATA] = lambda link, xid, _: link.send(
            jute.reply_frame(xid, 11, 0, get_reply(b"old")), jute.event_frame(event), jute.event_frame(event)
        )
        seen: list[WatchEvent] = []
        assert (await client.get("/a", seen.append)).data == b"old"
        assert seen == [WatchEvent(WatchKind.DATA_CHANGED, "/a")]  # only once: a watch ends with its event
        assert client.watch_count == 0

    play(scenario, "zk:1/kafka")


def test_events_come_before_the_reply_that_follows_them() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        order: list[str] = []
        answer_with_node(server, client)
        await client.get("/a", lambda _: order.append("event"))
        event = jute.event_frame(WatchEvent(WatchKind.DATA_CHANGED, "/a"))
        server.answers[OpCode.GET_DATA] = lambda link, xid, _: link.send(
            event, jute.reply_frame(xid, 12, 0, get_reply(b"new"))
        )
        await client.get("/a")
        order.append("reply")
        assert order == ["event", "reply"]

    play(scenario)


def test_one_failing_watcher_does_not_keep_the_event_from_others() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        answer_with_node(server, client)
        seen: list[WatchEvent] = []

        def broken(event: WatchEvent) -> None:
            raise LookupError("a bug")

        await client.get("/a", broken)
        await client.get("/a", seen.append)
        server.links[0].send(jute.event_frame(WatchEvent(WatchKind.DELETED, "/a")))
        await client.get("/a")
        assert len(seen) == 1
        assert isinstance(reported[0], LookupError)

    play(scenario)


def test_a_server_without_multi_read_is_asked_once_and_read_singly() -> None:
    server = ScriptedServer()

    def unimplemented(link: Link, xid: int, body: bytes) -> None:
        link.send(jute.reply_frame(xid, -1, -6))
        asyncio.get_running_loop().call_soon(link.abort)

    async def main() -> None:
        server.answers[OpCode.MULTI_READ] = unimplemented
        client = client_of(server)
        await client.start()
        assert client.session_id == 100
        assert [link.opcodes() for link in server.links] == [[OpCode.MULTI_READ], []]
        answers = iter([reply(get_reply(b"1")), reply(code=-101), reply(get_reply(b"3"))])
        server.answers[OpCode.GET_DATA] = lambda link, xid, body: next(answers)(link, xid, body)
        nodes = await client.get_many(["/1", "/2", "/3"])
        assert [node and node.data for node in nodes] == [b"1", None, b"3"]
        server.links[-1].abort()
        server.answers[OpCode.CLOSE_SESSION] = drop
        await asyncio.sleep(0.1)
        await client.close()

    run_in_virtual_time(main())
    assert [link.opcodes()[:1] for link in server.links] == [
        [OpCode.MULTI_READ],
        [OpCode.GET_DATA],
        [OpCode.CLOSE_SESSION],
    ]


class TestStart:
    @pytest.mark.case("ZKC-16")
    def test_no_server(self) -> None:
        async def main() -> None:
            server = ScriptedServer()
            server.down = True
            with pytest.raises(ConnectionLoss, match=r"no session with a:1, b:2 within 6\.0 s: \w:\d: \w:\d"):
                await client_of(server, "a:1,b:2").start()
            assert now() == pytest.approx(6.0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        run_in_virtual_time(main())

    def test_a_server_that_never_answers(self) -> None:
        async def main() -> None:
            server = ScriptedServer()
            server.mute = True
            with pytest.raises(ConnectionLoss):
                await client_of(server, connection_timeout_ms=2000).start()
            assert now() == pytest.approx(2.0)
            await asyncio.sleep(0.1)
            assert not any(link.open for link in server.links)

        run_in_virtual_time(main())

    @pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x02ab", b"\xff\xff\xff\xff"])
    def test_a_server_that_speaks_something_else(self, garbage: bytes) -> None:
        async def main() -> None:
            server = ScriptedServer()
            server._shake_hands = lambda link, request: link.send(garbage)  # type: ignore[method-assign]
            with pytest.raises(ConnectionLoss, match="unreadable data"):
                await client_of(server).start()

        run_in_virtual_time(main())

    @pytest.mark.case("ZKC-17")
    def test_refused_credentials(self) -> None:
        async def main() -> None:
            server = ScriptedServer()
            server.answers[OpCode.AUTH] = reply(code=-115)
            with pytest.raises(AuthFailed):
                await client_of(server, credentials=[("nonsense", b"x")]).start()
            assert now() == 0.0

        run_in_virtual_time(main())


@pytest.mark.case("ZKC-17")
def test_credentials_refused_on_a_later_connection_reach_the_listener_and_are_tried_again() -> None:
    async def main() -> None:
        server = ScriptedServer()
        server.answers[OpCode.AUTH] = reply()
        client = client_of(server, credentials=[("digest", b"u:p")])
        await client.start()
        listener = Listener(server)
        client.add_session_listener(listener)
        server.answers[OpCode.AUTH] = reply(code=-115)
        server.answers[OpCode.GET_DATA] = reply(get_reply(b"x"))
        server.links[0].abort()
        await asyncio.sleep(0.1)
        assert listener.seen == ["auth failure"]
        with pytest.raises(AuthFailed):
            await client.get("/a")
        server.answers[OpCode.AUTH] = reply()
        await asyncio.sleep(1.0)
        assert (await client.get("/a")).data == b"x"
        assert server.links[-1].opcodes()[0] is OpCode.AUTH
        server.answers[OpCode.CLOSE_SESSION] = drop
        await client.close()

    run_in_virtual_time(main())


class TestEphemeralOfUnknownOutcome:
    def test_a_node_of_our_session_is_the_one_we_made(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.CREATE2] = first_then(drop, reply(code=-110))
            server.answers[OpCode.EXISTS] = reply(jute.pack_stat(STAT._replace(ephemeral_owner=100)))
            path, stat = await client.create("/e", b"", CreateMode.EPHEMERAL)
            assert (path, stat.ephemeral_owner) == ("/e", 100)

        play(scenario)

    def test_a_node_of_another_session_is_not(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.CREATE2] = first_then(drop, reply(code=-110))
            server.answers[OpCode.EXISTS] = reply(jute.pack_stat(STAT._replace(ephemeral_owner=7)))
            with pytest.raises(NodeExists):
                await client.create("/e", b"", CreateMode.EPHEMERAL)

        play(scenario)

    def test_our_own_node_from_before_is_no_success_of_this_call(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.CREATE2] = reply(code=-110)
            with pytest.raises(NodeExists):
                await client.create("/e", b"", CreateMode.EPHEMERAL)
            assert OpCode.EXISTS not in server.links[0].opcodes()

        play(scenario)

    def test_of_a_persistent_node_the_caller_is_told(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.CREATE2] = drop
            with pytest.raises(ConnectionLoss):
                await client.create("/p")

        play(scenario)


def first_then(first: Answer, then: Answer) -> Answer:
    answers = iter([first])
    return lambda link, xid, body: next(answers, then)(link, xid, body)


class TestBulkWrites:
    OPS = tuple(Set(f"/n/{i}", b"x") for i in range(5000))

    def test_at_most_two_in_flight_and_none_after_the_fence_held(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            held: list[tuple[Link, int, bytes]] = []
            server.answers[OpCode.MULTI] = lambda link, xid, body: held.append((link, xid, body))
            writing = asyncio.create_task(client.write_many(self.OPS, Fence("/controller_epoch", 3)))
            await asyncio.sleep(0.01)
            assert len(held) == 2
            for link, xid, body in held:
                assert body.startswith(jute.MULTI_HEADER.pack(OpCode.CHECK, False, -1))
                link.send(jute.reply_frame(xid, 20, 0, failed_multi(1001, at=0, code=-103)))
            with pytest.raises(BadVersion) as caught:
                await writing
            assert caught.value.path == "/controller_epoch"
            assert len(held) == 2

        play(scenario)

    def test_a_conflict_fails_its_multi_and_the_others_go_on(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            count = 0

            def answer(link: Link, xid: int, body: bytes) -> None:
                nonlocal count
                count += 1
                done = failed_multi(1001, at=3, code=-103) if count == 2 else applied_sets(1000)
                link.send(jute.reply_frame(xid, 20, 0, done))

            server.answers[OpCode.MULTI] = answer
            results = await client.write_many(self.OPS[:3000], Fence("/controller_epoch", 3))
            kinds = [type(result).__name__ for result in results]
            assert kinds[:1000] == kinds[2000:] == ["Stat"] * 1000
            assert kinds[1000:2000] == ["RuntimeInconsistency"] * 2 + ["BadVersion"] + ["RuntimeInconsistency"] * 997
            assert isinstance(results[1002], BadVersion)
            assert results[1002].path == "/n/1002"

        play(scenario)

    def test_too_large_an_operation_is_refused_before_anything_is_sent(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            with pytest.raises(BadArguments, match="/big"):
                await client.write_many([*self.OPS, Set("/big", bytes(1_048_576))])
            with pytest.raises(BadArguments, match="server's limit is 1048575"):
                await client.set("/big", bytes(1_048_575))
            with pytest.raises(BadArguments, match="must start with /"):
                await client.get("relative")
            assert server.links[0].opcodes() == [OpCode.MULTI_READ]

        play(scenario)

    def test_a_lost_connection_ends_it_with_unknown_outcome(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.MULTI] = drop
            with pytest.raises(ConnectionLoss):
                await client.write_many(self.OPS)

        play(scenario)

    def test_an_empty_one_asks_nothing(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            assert await client.write_many([]) == []
            assert await client.get_many([]) == []

        play(scenario)

    def test_a_multi_says_which_operation_failed(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            server.answers[OpCode.MULTI] = reply(failed_multi(2, at=1, code=-101))
            results = await client.multi([Check("/a", 1), Set("/b", b"")])
            assert [type(result).__name__ for result in results] == ["RuntimeInconsistency", "NoNode"]

        play(scenario)


def failed_multi(count: int, *, at: int, code: int) -> bytes:
    codes = [0 if i < at else code if i == at else -2 for i in range(count)]
    return b"".join(jute.MULTI_ERROR.pack(-1, False, c, c) for c in codes) + jute.MULTI_END


def applied_sets(count: int) -> bytes:
    check = jute.MULTI_HEADER.pack(OpCode.CHECK, False, 0)
    done = jute.MULTI_HEADER.pack(OpCode.SET_DATA, False, 0) + jute.pack_stat(STAT)
    return check + done * count + jute.MULTI_END


class TestBulkReads:
    PATHS = tuple(f"/n/{i}" for i in range(1200))

    def test_watches_carry_the_zxid_of_their_own_batch(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            zxids = iter([50, 60, 70])

            def answer(link: Link, xid: int, body: bytes) -> None:
                zxid = next(zxids)
                count = 500 if zxid < 70 else 200
                found = jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, 0) + get_reply(b"v")
                missing = jute.MULTI_ERROR.pack(-1, False, -101, -101)
                link.send(jute.reply_frame(xid, zxid, 0, missing + found * (count - 1) + jute.MULTI_END))

            server.answers[OpCode.MULTI_READ] = answer
            server.answers[OpCode.SET_WATCHES] = reply()
            nodes = await client.get_many_and_watch(self.PATHS, lambda _: None)
            assert [i for i, node in enumerate(nodes) if node is None] == [0, 500, 1000]
            sent = [body for _, opcode, body in server.links[0].frames if opcode is OpCode.SET_WATCHES]
            batches = [self.PATHS[:500], self.PATHS[500:1000], self.PATHS[1000:]]
            expected = [
                jute.pack_set_watches(zxid, batch[1:], batch[:1], ())
                for zxid, batch in zip((50, 60, 70), batches, strict=True)
            ]
            assert sent == expected
            assert client.watch_count == 1200
            server.links[0].abort()
            await asyncio.sleep(0.1)
            again = [body for _, opcode, body in server.links[1].frames if opcode is OpCode.SET_WATCHES]
            assert [jute.LONG.unpack_from(body)[0] for body in again] == [50, 60, 70]

        play(scenario)

    def test_a_connection_lost_while_watches_are_set_is_no_failure(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            found = jute.MULTI_HEADER.pack(OpCode.GET_DATA, False, 0) + get_reply(b"v")
            server.answers[OpCode.MULTI_READ] = reply(found + jute.MULTI_END)
            server.answers[OpCode.SET_WATCHES] = first_then(drop, reply())
            nodes = await client.get_many_and_watch(["/a"], lambda _: None)
            assert nodes[0] is not None
            await asyncio.sleep(0.1)
            assert OpCode.SET_WATCHES in server.links[1].opcodes()

        play(scenario)

    def test_at_most_eight_in_flight(self) -> None:
        async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
            held: list[tuple[Link, int, bytes]] = []
            server.answers[OpCode.MULTI_READ] = lambda link, xid, body: held.append((link, xid, body))
            reading = asyncio.create_task(client.children_many([f"/{i}" for i in range(10_000)]))
            await asyncio.sleep(0.01)
            assert len(held) == 8
            reading.cancel()
            await asyncio.sleep(0.01)
            assert len(held) == 8
            assert reading.cancelled()

        play(scenario)


def test_request_numbers_begin_again_after_the_largest() -> None:
    async def scenario(server: ScriptedServer, client: ZooKeeperClient) -> None:
        answer_with_node(server, client)
        connection = client._session._connection
        assert connection is not None
        connection._xid = jute.MAX_XID - 1
        await client.get("/a")
        await client.get("/a")
        assert [xid for xid, _, _ in server.links[0].frames[-2:]] == [jute.MAX_XID, 1]

    play(scenario)
