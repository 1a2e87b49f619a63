"""Watches, one-shot and persistent, and SetWatches: ZK-68 to ZK-98. Events are (type, path)."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
FOREVER = 2**63 - 1


@pytest.mark.case("ZK-68")
async def test_exists_watch_on_a_missing_node(zk: Any) -> None:
    path = zk.at("x")
    assert (await zk.exists(path, watch=True)).err == -101
    await zk.create(path)
    await zk.delete(path)
    await zk.create(path)
    assert await zk.drain() == [(CREATED, path)]


@pytest.mark.case("ZK-69")
async def test_exists_watch_on_a_node(zk: Any) -> None:
    path = await zk.make("x")
    await zk.exists(path, watch=True)
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)]
    await zk.exists(path, watch=True)
    await zk.delete(path)
    assert await zk.drain() == [(DELETED, path)]


@pytest.mark.case("ZK-70")
async def test_data_watch(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    await zk.set(path)
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)]
    await zk.get(path, watch=True)
    await zk.delete(path)
    await zk.create(path)
    assert await zk.drain() == [(DELETED, path)]


@pytest.mark.case("ZK-71")
async def test_failed_reads_leave_no_watch(zk: Any) -> None:
    path = zk.at("x")
    assert (await zk.get(path, watch=True)).err == -101
    assert (await zk.children(path, watch=True)).err == -101
    await zk.create(path)
    await zk.set(path)
    await zk.create(f"{path}/c")
    assert await zk.drain() == []


@pytest.mark.case("ZK-72")
async def test_child_watch(zk: Any) -> None:
    path = await zk.make("x")
    await zk.children(path, watch=True)
    await zk.create(f"{path}/c")
    assert await zk.drain() == [(CHILDREN, path)]
    await zk.children2(path, watch=True)
    await zk.delete(f"{path}/c")
    assert await zk.drain() == [(CHILDREN, path)]
    await zk.children(path, watch=True)
    await zk.delete(path)
    assert await zk.drain() == [(DELETED, path)]


@pytest.mark.case("ZK-73")
async def test_what_a_child_watch_does_not_hear(zk: Any) -> None:
    path = await zk.make("x")
    await zk.create(f"{path}/c")
    await zk.children(path, watch=True)
    await zk.create(f"{path}/c/g")
    await zk.set(f"{path}/c")
    await zk.set(path)
    await zk.set_acl(path, [(31, "world", "anyone")])
    assert await zk.drain() == []


@pytest.mark.case("ZK-73")
async def test_set_acl_fires_no_data_watch(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    await zk.set_acl(path, [(31, "world", "anyone")])
    assert await zk.drain() == []


@pytest.mark.case("ZK-74")
async def test_three_watches_and_one_deletion(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    await zk.exists(path, watch=True)
    await zk.children(path, watch=True)
    await zk.delete(path)
    assert await zk.drain() == [(DELETED, path)]


@pytest.mark.case("ZK-75")
async def test_event_of_an_own_write_precedes_its_reply(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    reply = await zk.set(path)
    assert [(event.type, event.path, event.zxid) for event in zk.events] == [(CHANGED, path, reply.zxid)]


@pytest.mark.case("ZK-76")
async def test_event_precedes_the_reply_that_shows_the_change(connect: Any, zk: Any) -> None:
    path = await zk.make("x")
    other = await connect()
    for _ in range(50):
        version = (await zk.get(path, watch=True)).node[1].version
        other.send(zk.op.set(path))
        while (await zk.get(path)).node[1].version == version:
            assert zk.events == []
        assert [event.type for event in zk.events] == [CHANGED]
        zk.events.clear()
        await other.receive()


@pytest.mark.case("ZK-77")
async def test_failed_multi_fires_nothing(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    await zk.children(path, watch=True)
    assert (await zk.multi(zk.op.set(path), zk.op.create(f"{path}/c"), zk.op.check(path, 9))).codes == [0, 0, -103]
    assert await zk.drain() == []
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)]


@pytest.mark.case("ZK-78")
async def test_events_of_a_multi(zk: Any) -> None:
    parent, child = await zk.make("p"), zk.at("p/x")
    await zk.exists(child, watch=True)
    await zk.get(parent, watch=True)
    await zk.children(parent, watch=True)
    reply = await zk.multi(zk.op.create(child), zk.op.set(parent), zk.op.delete(child))
    assert {event.zxid for event in zk.events} == {reply.zxid}
    assert await zk.drain() == [(CREATED, child), (CHILDREN, parent), (CHANGED, parent)]


@pytest.mark.case("ZK-79")
async def test_watch_does_not_survive_a_resume(connect: Any, zk: Any) -> None:
    path = await zk.make("x")
    first = await connect()
    await first.get(path, watch=True)
    await first.drop()
    again = await connect(resume=first)
    await zk.set(path)
    assert await again.drain() == []


@pytest.mark.case("ZK-80")
async def test_events_of_an_expiry(connect: Any, zk: Any) -> None:
    owner = await connect(timeout_ms=1000)
    paths = [(await owner.create(zk.at(name), flags=1)).path for name in ("a", "b")]
    for path in paths:
        await zk.exists(path, watch=True)
    await zk.children(zk.root, watch=True)
    await owner.drop()
    events = sorted([await zk.event() for _ in range(3)])
    assert events == sorted([(DELETED, paths[0]), (DELETED, paths[1]), (CHILDREN, zk.root)])
    assert await zk.drain() == []


@pytest.mark.case("ZK-47")
async def test_event_of_an_unreadable_node_is_dropped_and_its_watch_spent(connect: Any, zk: Any) -> None:
    path = await zk.make("x")
    owner = await connect()
    await owner.auth("digest", b"user:secret")
    await zk.get(path, watch=True)
    await owner.set_acl(path, [(31, "auth", "")])
    await owner.set(path, b"1")
    assert await zk.drain() == []
    await owner.set_acl(path, [(31, "world", "anyone")])
    await owner.set(path, b"2")
    assert await zk.drain() == []


# --- set again -------------------------------------------------------------------------------------------------------


@pytest.mark.case("ZK-81")
async def test_set_watches_when_nothing_changed(zk: Any) -> None:
    data, child, exist = await zk.make("d"), await zk.make("c"), zk.at("missing")
    now = (await zk.ping()).zxid
    assert (await zk.set_watches(now, data=(data,), exist=(exist,), child=(child,))).err == 0
    assert await zk.drain() == []
    for _ in range(2):
        await zk.set(data)
        await zk.create(f"{child}/x-", flags=2)
    await zk.create(exist)
    assert await zk.drain() == [(CHANGED, data), (CHILDREN, child), (CREATED, exist)]


@pytest.mark.case("ZK-81")
async def test_set_watches_with_the_zxid_of_the_last_change_itself(zk: Any) -> None:
    path = await zk.make("x")
    changed = (await zk.set(path)).zxid
    await zk.set_watches(changed, data=(path,))
    assert await zk.drain() == []
    created = (await zk.create(f"{path}/c")).zxid
    await zk.set_watches(created, child=(path,))
    assert await zk.drain() == []


@pytest.mark.case("ZK-82")
async def test_set_watches_after_a_change_of_data(zk: Any) -> None:
    path = await zk.make("x")
    before = (await zk.ping()).zxid
    await zk.set(path)
    await zk.set_watches(before, data=(path,))
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)]


@pytest.mark.case("ZK-83")
async def test_set_watches_after_a_deletion(zk: Any) -> None:
    path = await zk.make("x")
    before = (await zk.ping()).zxid
    await zk.delete(path)
    await zk.set_watches(before, data=(path,), child=(path,))
    assert await zk.drain() == [(DELETED, path), (DELETED, path)]


@pytest.mark.case("ZK-84")
async def test_set_watches_after_a_new_life(zk: Any) -> None:
    path = await zk.make("x")
    before = (await zk.ping()).zxid
    await zk.delete(path)
    await zk.create(path)
    await zk.set_watches(before, data=(path,), child=(path,))
    assert await zk.drain() == [(CHANGED, path), (CHILDREN, path)]


@pytest.mark.case("ZK-85")
async def test_set_watches_on_what_never_existed(zk: Any) -> None:
    path = zk.at("x")
    await zk.set_watches(FOREVER, data=(path,), child=(path,))
    await zk.create(path)
    assert await zk.drain() == [(DELETED, path), (DELETED, path)]


@pytest.mark.case("ZK-86")
async def test_set_watches_exist_on_a_node(zk: Any) -> None:
    path = await zk.make("x")
    await zk.set_watches(FOREVER, exist=(path,))
    await zk.set(path)
    assert await zk.drain() == [(CREATED, path)]


@pytest.mark.case("ZK-87")
async def test_set_watches_exist_on_a_missing_node(zk: Any) -> None:
    path = zk.at("x")
    await zk.set_watches(0, exist=(path,))
    assert await zk.drain() == []
    await zk.create(path)
    assert await zk.drain() == [(CREATED, path)]


@pytest.mark.case("ZK-88")
async def test_set_watches_after_a_short_life(zk: Any) -> None:
    path, child = await zk.make("p"), zk.at("p/c")
    before = (await zk.ping()).zxid
    await zk.create(child)
    await zk.delete(child)
    await zk.set_watches(before, exist=(child,), child=(path,))
    assert await zk.drain() == [(CHILDREN, path)]


@pytest.mark.case("ZK-89")
async def test_set_watches_with_duplicates(zk: Any) -> None:
    path = await zk.make("x")
    before = (await zk.ping()).zxid
    await zk.set(path)
    await zk.set_watches(before, data=(path,) * 3)
    assert await zk.drain() == [(CHANGED, path)] * 3
    await zk.set_watches(FOREVER, data=(path,) * 3)
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)]


@pytest.mark.case("ZK-90")
@pytest.mark.parametrize("xid", [-8, 77])
async def test_immediate_events_precede_the_reply(zk: Any, xid: int) -> None:
    path = await zk.make("x")
    reply = await zk.call(zk.op.set_watches(0, data=(path,)), xid=xid)
    assert (reply.xid, reply.err, reply.body) == (xid, 0, b"")
    assert [(event.type, event.path, event.zxid) for event in zk.events] == [(CHANGED, path, -1)]


@pytest.mark.case("ZK-91")
async def test_each_batch_with_its_own_zxid(connect: Any, zk: Any) -> None:
    first, second = await zk.make("a"), await zk.make("b")
    other = await connect()
    read_first = (await zk.multi_read(zk.op.get(first))).zxid
    await other.set(first)
    read_second = (await zk.multi_read(zk.op.get(second))).zxid
    await zk.set_watches(read_first, data=(first,))
    await zk.set_watches(read_second, data=(second,))
    assert await zk.drain() == [(CHANGED, first)]


@pytest.mark.case("ZK-92")
async def test_set_watches_with_null_vectors(zk: Any) -> None:
    null = (-1).to_bytes(4, "big", signed=True)
    assert (await zk.call((101, bytes(8) + null * 3))).err == -5
    assert (await zk.ping()).err == 0


# --- lasting ---------------------------------------------------------------------------------------------------------


@pytest.mark.case("ZK-93")
async def test_persistent_watch(zk: Any) -> None:
    path = await zk.make("x")
    reply = await zk.add_watch(path, 0)
    assert (reply.err, reply.body) == (0, bytes(4))
    await zk.set(path)
    await zk.create(f"{path}/c")
    await zk.set(f"{path}/c")
    await zk.delete(f"{path}/c")
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path), (CHILDREN, path), (CHILDREN, path), (CHANGED, path)]
    await zk.delete(path)
    await zk.create(path)
    assert await zk.drain() == [(DELETED, path), (CREATED, path)]


@pytest.mark.case("ZK-94")
async def test_recursive_watch(zk: Any) -> None:
    path = await zk.make("x")
    await zk.make("xy")
    await zk.add_watch(path, 1)
    await zk.set(path)
    await zk.create(f"{path}/c")
    await zk.create(f"{path}/c/g")
    await zk.set(f"{path}/c/g")
    await zk.delete(f"{path}/c/g")
    await zk.set(zk.at("xy"))
    child, grandchild = f"{path}/c", f"{path}/c/g"
    assert await zk.drain() == [
        (CHANGED, path),
        (CREATED, child),
        (CREATED, grandchild),
        (CHANGED, grandchild),
        (DELETED, grandchild),
    ]


@pytest.mark.case("ZK-95")
async def test_persistent_and_one_shot_together(zk: Any) -> None:
    path = await zk.make("x")
    await zk.add_watch(path, 0)
    await zk.get(path, watch=True)
    await zk.set(path)
    await zk.set(path)
    assert await zk.drain() == [(CHANGED, path)] * 2


@pytest.mark.case("ZK-95")
async def test_persistent_and_recursive_together(zk: Any) -> None:
    path = await zk.make("x")
    await zk.add_watch(path, 0)
    await zk.add_watch(path, 1)
    await zk.set(path)
    await zk.create(f"{path}/c")
    assert await zk.drain() == [(CHANGED, path), (CREATED, f"{path}/c"), (CHILDREN, path)]
    await zk.delete(f"{path}/c")
    await zk.delete(path)
    assert await zk.drain() == [(DELETED, f"{path}/c"), (CHILDREN, path), (DELETED, path)]


@pytest.mark.case("ZK-96")
async def test_lasting_watches_set_again(zk: Any) -> None:
    persistent, recursive = await zk.make("p"), await zk.make("r")
    await zk.create(f"{recursive}/c")
    before = (await zk.ping()).zxid
    await zk.set(persistent)
    await zk.set(f"{recursive}/c")
    assert (await zk.set_watches(before - 5, more=((persistent,), (recursive,)))).err == 0
    assert await zk.drain() == []
    await zk.set(persistent)
    await zk.set(f"{recursive}/c")
    assert await zk.drain() == [(CHANGED, persistent), (CHANGED, f"{recursive}/c")]


@pytest.mark.case("ZK-97")
async def test_check_and_remove_watches(zk: Any) -> None:
    path = await zk.make("x")
    await zk.get(path, watch=True)
    await zk.children(path, watch=True)
    assert [(await zk.check_watches(path, kind)).err for kind in (1, 2, 3, 4, 5)] == [0, 0, 0, -121, -121]
    assert (await zk.remove_watches(path, 2)).err == 0
    assert (await zk.remove_watches(path, 2)).err == -121
    await zk.set(path)
    assert await zk.drain() == []
    assert (await zk.remove_watches(path, 3)).err == 0
    assert (await zk.remove_watches(path, 3)).err == -121
    assert (await zk.check_watches(path, 9)).err == -5
    assert (await zk.remove_watches(path, 9)).err == -5


@pytest.mark.case("ZK-97")
@pytest.mark.parametrize(("mode", "kind"), [(0, 3), (1, 3)])
async def test_remove_a_lasting_watch(zk: Any, mode: int, kind: int) -> None:
    path = await zk.make("x")
    await zk.add_watch(path, mode)
    assert (await zk.check_watches(path, 3)).err == 0
    assert (await zk.check_watches(path, 2)).err == -121
    assert (await zk.remove_watches(path, kind)).err == 0
    await zk.set(path)
    await zk.create(f"{path}/c")
    assert await zk.drain() == []


@pytest.mark.case("ZK-98")
async def test_add_watch_of_an_unknown_mode_and_who_am_i(zk: Any) -> None:
    assert (await zk.add_watch(zk.root, 7)).err == -5
    assert ("ip", "127.0.0.1") in (await zk.who_am_i()).identities
    await zk.auth("digest", b"user:secret")
    assert ("digest", "user") in (await zk.who_am_i()).identities
