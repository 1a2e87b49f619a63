"""Multis and multi-reads: ZK-53 to ZK-67."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.case("ZK-53")
async def test_multi_of_each_kind(zk: Any) -> None:
    path, gone = await zk.make("x"), await zk.make("gone")
    op = zk.op
    results = (
        await zk.multi(
            op.check(path, 0),
            op.create(zk.at("new"), b"1"),
            op.set(path, b"2", 0),
            op.delete(gone),
            op.create(zk.at("new2"), code=15),
            op.create(zk.at("container"), flags=4, code=19),
        )
    ).results
    assert [(kind, err) for kind, err, _value in results] == [(13, 0), (1, 0), (5, 0), (2, 0), (15, 0), (15, 0)]
    assert results[1][2] == zk.at("new")
    assert results[2][2] == await zk.stat_of(path)
    assert results[4][2] == (zk.at("new2"), await zk.stat_of(zk.at("new2")))
    assert (await zk.exists(gone)).err == -101


@pytest.mark.case("ZK-54")
async def test_failed_multi(zk: Any) -> None:
    path = await zk.make("x", b"before")
    before = await zk.stat_of(zk.root)
    op = zk.op
    reply = await zk.multi(
        op.set(path, b"after"), op.create(zk.at("y")), op.set(path, b"z", 7), op.delete(path), op.check(path)
    )
    assert reply.err == 0
    assert reply.codes == [0, 0, -103, -2, -2]
    data, stat = (await zk.get(path)).node
    assert (data, stat.version) == (b"before", 0)
    assert await zk.stat_of(zk.root) == before
    assert (await zk.exists(zk.at("y"))).err == -101


@pytest.mark.case("ZK-54")
async def test_failed_multi_leaves_every_stat_as_it_was(zk: Any) -> None:
    path, child = await zk.make("p"), zk.at("p/c")
    await zk.create(child, b"1", flags=1)
    before = [await zk.stat_of(zk.root), await zk.stat_of(path), (await zk.get(child)).node]
    op = zk.op
    reply = await zk.multi(
        op.set(child, b"2"),
        op.delete(child),
        op.create(child, b"3"),
        op.set(path, b"x"),
        op.delete(child),
        op.delete(path),
        op.create(zk.at("n-"), flags=3),
        op.check(zk.at("missing")),
    )
    assert reply.codes == [0] * 7 + [-101]
    assert [await zk.stat_of(zk.root), await zk.stat_of(path), (await zk.get(child)).node] == before
    assert (await zk.get_ephemerals(zk.root)).names == [child]


@pytest.mark.case("ZK-55")
async def test_multi_sees_itself_and_has_one_zxid(zk: Any) -> None:
    op = zk.op
    parent, child = zk.at("p"), zk.at("p/c")
    reply = await zk.multi(op.create(parent), op.create(child), op.set(child, b"1"))
    assert reply.results[2][2].mzxid == reply.zxid
    stats = [await zk.stat_of(parent), await zk.stat_of(child)]
    assert {stat.czxid for stat in stats} == {reply.zxid}
    assert stats[0].pzxid == stats[1].mzxid == reply.zxid


@pytest.mark.case("ZK-56")
async def test_versions_advance_inside_a_multi(zk: Any) -> None:
    path = await zk.make("x")
    op = zk.op
    results = (await zk.multi(op.set(path, b"a", 0), op.set(path, b"b", 1), op.check(path, 2))).results
    assert [results[0][2].version, results[1][2].version] == [1, 2]
    assert (await zk.multi(op.set(path, b"c", 2), op.set(path, b"d", 2))).codes == [0, -103]
    assert (await zk.get(path)).node[0] == b"b"


@pytest.mark.case("ZK-57")
async def test_check(zk: Any) -> None:
    path = await zk.make("x")
    op = zk.op
    assert [kind for kind, _err, _value in (await zk.multi(op.check(path, 0), op.check(path))).results] == [13, 13]
    assert (await zk.multi(op.check(path, 3))).codes == [-103]
    assert (await zk.multi(op.check(zk.at("missing")))).codes == [-101]


@pytest.mark.case("ZK-58")
async def test_empty_multi(zk: Any) -> None:
    reply = await zk.multi()
    assert (reply.err, len(reply.body), reply.results) == (0, 9, [])


@pytest.mark.case("ZK-59")
async def test_operations_that_have_no_place_in_a_multi(zk: Any) -> None:
    op = zk.op
    for forbidden in (op.get(zk.root), op.exists(zk.root), op.set_acl(zk.root, [(31, "world", "anyone")])):
        reply = await zk.multi(op.create(zk.at("x")), forbidden)
        assert (reply.err, reply.body) == (-5, b"")
    assert (await zk.exists(zk.at("x"))).err == -101


@pytest.mark.case("ZK-60")
async def test_sequence_numbers_in_a_multi(zk: Any) -> None:
    op = zk.op
    assert (await zk.multi(op.create(zk.at("n-"), flags=2), op.check(zk.root, 9))).codes == [0, -103]
    results = (await zk.multi(op.create(zk.at("n-"), flags=2), op.create(zk.at("n-"), flags=2))).results
    assert [value for _kind, _err, value in results] == [zk.at("n-0000000000"), zk.at("n-0000000001")]


@pytest.mark.case("ZK-61")
async def test_ephemeral_created_by_a_multi(connect: Any, zk: Any) -> None:
    owner = await connect()
    await owner.multi(zk.op.create(zk.at("e"), flags=1))
    assert (await zk.stat_of(zk.at("e"))).owner == owner.session
    await owner.close_session()
    assert (await zk.exists(zk.at("e"))).err == -101


@pytest.mark.case("ZK-62")
async def test_multi_read(zk: Any) -> None:
    path, null, missing = await zk.make("x", b"1"), await zk.make("null", None), zk.at("missing")
    op = zk.op
    reply = await zk.multi_read(op.get(path), op.get(missing), op.children(zk.root), op.get(null), op.children(missing))
    found = reply.results
    assert found[0] == (4, 0, (b"1", await zk.stat_of(path)))
    assert found[1] == found[4] == (-1, -101, -101)
    assert (found[2][0], sorted(found[2][2])) == (8, ["null", "x"])
    assert found[3][2][0] is None


@pytest.mark.case("ZK-63")
async def test_operations_that_have_no_place_in_a_multi_read(zk: Any) -> None:
    op = zk.op
    for forbidden in (
        op.exists(zk.root),
        op.children(zk.root, code=12),
        (6, op.get(zk.root)[1][:-1]),
        op.set(zk.root, b"x"),
    ):
        assert (await zk.multi_read(forbidden)).err == -5
        assert (await zk.multi_read(op.get(zk.root), forbidden)).err == -5
    assert (await zk.get(zk.root)).node[0] == b""


@pytest.mark.case("ZK-64")
async def test_multi_read_sets_no_watch(zk: Any) -> None:
    path = await zk.make("x")
    await zk.multi_read(zk.op.get(path, watch=True), zk.op.children(path, watch=True))
    await zk.set(path, b"1")
    await zk.create(f"{path}/c")
    assert await zk.drain() == []


@pytest.mark.case("ZK-65")
async def test_multi_read_stands_at_the_zxid_of_its_header(zk: Any) -> None:
    path = await zk.make("x")
    for _ in range(20):
        written = (await zk.set(path)).stat
        reply = await zk.multi_read(zk.op.get(path))
        assert reply.zxid == written.mzxid == reply.results[0][2][1].mzxid


@pytest.mark.case("ZK-66")
async def test_empty_multi_read(zk: Any) -> None:
    reply = await zk.multi_read()
    assert (reply.err, reply.results) == (0, [])


@pytest.mark.case("ZK-67")
async def test_large_multi_read(zk: Any) -> None:
    path = await zk.make("x", bytes(900_000))
    found = (await zk.multi_read(*[zk.op.get(path)] * 5)).results
    assert [len(value[0]) for _kind, _err, value in found] == [900_000] * 5
