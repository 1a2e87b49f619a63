"""Nodes, versions, sequences, ephemerals and access: ZK-26 to ZK-52."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.case("ZK-26")
async def test_stat_of_a_new_node(zk: Any) -> None:
    created = await zk.create(zk.at("x"), b"abc")
    stat = await zk.stat_of(zk.at("x"))
    assert stat.czxid == stat.mzxid == stat.pzxid == created.zxid
    assert (stat.version, stat.cversion, stat.aversion, stat.owner) == (0, 0, 0, 0)
    assert (stat.length, stat.children) == (3, 0)
    assert stat.ctime == stat.mtime
    assert abs(stat.ctime - time.time() * 1000) < 5000


@pytest.mark.case("ZK-27")
async def test_create_refused(zk: Any) -> None:
    path = await zk.make("x")
    assert (await zk.create(path)).err == -110
    assert (await zk.create(zk.at("missing/y"))).err == -101
    await zk.create(zk.at("e"), flags=1)
    assert (await zk.create(zk.at("e/child"))).err == -108


@pytest.mark.case("ZK-28")
async def test_create2_returns_the_stat(zk: Any) -> None:
    path, stat = (await zk.create(zk.at("x"), b"12", code=15)).path_and_stat
    assert path == zk.at("x")
    assert stat == await zk.stat_of(path)


@pytest.mark.case("ZK-29")
async def test_null_and_empty_data_stay_different(zk: Any) -> None:
    for name, data in (("null", None), ("empty", b"")):
        read, stat = (await zk.get(await zk.make(name, data))).node
        assert (read, stat.length) == (data, 0)
        await zk.set(zk.at(name), b"x")
        await zk.set(zk.at(name), data)
        assert (await zk.get(zk.at(name))).node[0] == data


@pytest.mark.case("ZK-30")
@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "./x", "a\x00b", "a\x01b", "a\x1fb", "a\x7fb", "a\x9fb", "a\uf8ffb", "a\ufff0b", "a\U0001f600b"],
)
async def test_bad_path(zk: Any, name: str) -> None:
    expected = -101 if "/" in name else -8  # the parent is checked before the path
    assert (await zk.create(zk.at(name))).err == expected


@pytest.mark.case("ZK-30")
async def test_relative_path_and_empty_element(zk: Any) -> None:
    assert (await zk.create("x")).err == -8
    assert (await zk.create("")).err == -8
    assert (await zk.create(f"{zk.root}//x")).err == -101
    for bad in ("x", "", f"{zk.root}/", f"{zk.root}//x", f"{zk.root}/./x"):
        assert (await zk.set(bad)).err == -8, bad
        assert (await zk.set_acl(bad, [(31, "world", "anyone")])).err == -8, bad
        assert (await zk.multi(zk.op.check(bad))).codes == [-8], bad


@pytest.mark.case("ZK-30")
async def test_odd_paths_of_reads_and_deletes(zk: Any) -> None:
    for bad in ("x", f"{zk.root}/", f"{zk.root}//x", f"{zk.root}/./x", f"{zk.root}/\x01"):
        for reply in (await zk.get(bad), await zk.exists(bad), await zk.children(bad), await zk.get_acl(bad)):
            assert reply.err == -101, bad
    assert (await zk.exists("a\x00")).err == -8
    assert (await zk.get("")).node[1] == (await zk.get("/")).node[1]
    assert (await zk.delete("x")).err == -8
    assert (await zk.delete("/a\x00")).err == -8
    assert (await zk.delete(f"{zk.root}/")).err == -101
    assert (await zk.delete(f"{zk.root}/./x")).err == -101


@pytest.mark.case("ZK-30")
@pytest.mark.parametrize("name", ["...", ".a", "with space", "ü", "a\u2603b"])
async def test_odd_but_legal_path(zk: Any, name: str) -> None:
    assert (await zk.create(zk.at(name), b"1")).path == zk.at(name)
    assert (await zk.get(zk.at(name))).node[0] == b"1"
    assert (await zk.children(zk.root)).names == [name]


@pytest.mark.case("ZK-31")
async def test_missing_node(zk: Any) -> None:
    missing = zk.at("missing")
    for reply in (
        await zk.get(missing),
        await zk.exists(missing),
        await zk.children(missing),
        await zk.children2(missing),
        await zk.get_acl(missing),
        await zk.set(missing),
        await zk.delete(missing),
    ):
        assert (reply.err, reply.body) == (-101, b"")


@pytest.mark.case("ZK-32")
async def test_versions_of_data(zk: Any) -> None:
    path = await zk.make("x")
    before = await zk.stat_of(path)
    first = (await zk.set(path, b"a", 0)).stat
    assert (first.version, first.czxid) == (1, before.czxid)
    assert first.mzxid > before.mzxid
    assert (await zk.set(path, b"b", 0)).err == -103
    assert (await zk.set(path, b"b", -1)).stat.version == 2
    assert (await zk.set(path, b"b", -2)).err == -103
    assert (await zk.get(path)).node[0] == b"b"


@pytest.mark.case("ZK-33")
async def test_delete(zk: Any) -> None:
    path = await zk.make("x")
    await zk.create(f"{path}/child")
    assert (await zk.delete(path)).err == -111
    await zk.delete(f"{path}/child")
    assert (await zk.delete(path, 5)).err == -103
    assert (await zk.delete(path, 0)).err == 0
    assert (await zk.exists(path)).err == -101
    for indelible in ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"):
        assert (await zk.delete(indelible)).err == -8


@pytest.mark.case("ZK-34")
async def test_delete_looks_at_the_version_before_the_children(zk: Any) -> None:
    path = await zk.make("x")
    await zk.create(f"{path}/child")
    assert (await zk.delete(path, 5)).err == -103


@pytest.mark.case("ZK-35")
async def test_children(zk: Any) -> None:
    for number in range(20):
        await zk.make(f"c{number}")
    assert sorted((await zk.children(zk.root)).names) == sorted(f"c{number}" for number in range(20))
    assert "zookeeper" in (await zk.children("/")).names
    assert (await zk.children(zk.at("c1"))).names == []


@pytest.mark.case("ZK-36")
async def test_children2(zk: Any) -> None:
    await zk.make("x")
    assert (await zk.children2(zk.root)).names_and_stat == (["x"], await zk.stat_of(zk.root))


@pytest.mark.case("ZK-37")
async def test_sequence_counts_the_creations_of_the_parent(zk: Any) -> None:
    assert (await zk.create(zk.at("n-"), flags=2)).path == zk.at("n-0000000000")
    await zk.make("x")
    await zk.delete(zk.at("x"))
    assert (await zk.create(zk.at("q-"), flags=3)).path == zk.at("q-0000000002")
    assert (await zk.create(zk.at(""), flags=2)).path == zk.at("0000000003")
    assert (await zk.create(zk.at(".."), flags=2)).path == zk.at("..0000000004")


@pytest.mark.case("ZK-38")
async def test_cversion_and_pzxid(zk: Any) -> None:
    path = await zk.make("p")
    before = await zk.stat_of(path)
    assert before.cversion == 0
    created = (await zk.create(f"{path}/c")).zxid
    first = await zk.stat_of(path)
    await zk.set(f"{path}/c", b"x")
    second = await zk.stat_of(path)
    await zk.create(f"{path}/c/g")
    third = await zk.stat_of(path)
    await zk.delete(f"{path}/c/g")
    deleted = (await zk.delete(f"{path}/c")).zxid
    fourth = await zk.stat_of(path)
    assert [stat.cversion for stat in (first, second, third, fourth)] == [1, 1, 1, 2]
    assert [stat.pzxid for stat in (first, second, third, fourth)] == [created, created, created, deleted]
    assert {stat.mzxid for stat in (first, second, third, fourth)} == {before.mzxid}


@pytest.mark.case("ZK-39")
async def test_set_acl(zk: Any) -> None:
    path = await zk.make("x")
    before = await zk.stat_of(path)
    after = (await zk.set_acl(path, [(31, "world", "anyone"), (1, "ip", "127.0.0.1")], 0)).stat
    assert after == before._replace(aversion=1)
    assert (await zk.set_acl(path, [(31, "world", "anyone")], 0)).err == -103
    assert (await zk.set_acl(path, [(31, "world", "anyone")])).stat.aversion == 2


@pytest.mark.case("ZK-40")
async def test_root(zk: Any) -> None:
    assert (await zk.create("/")).err == -110
    data, stat = (await zk.get("/")).node
    assert (data, stat.czxid, stat.ctime, stat.version) == (b"", 0, 0, 0)


@pytest.mark.case("ZK-40")
async def test_nodes_that_are_always_there(zk: Any) -> None:
    assert sorted((await zk.children("/zookeeper")).names) == ["config", "quota"]
    assert (await zk.get_acl("/zookeeper/config")).acl_and_stat[0] == [(1, "world", "anyone")]
    assert (await zk.stat_of("/zookeeper/config")).aversion == -1
    assert (await zk.set("/zookeeper/config")).err == -102


@pytest.mark.case("ZK-41")
async def test_owner_of_an_ephemeral(zk: Any) -> None:
    path = (await zk.create(zk.at("e-"), flags=3)).path
    assert path == zk.at("e-0000000000")
    assert (await zk.stat_of(path)).owner == zk.session


@pytest.mark.case("ZK-42")
async def test_ephemerals_end_with_their_session(connect: Any, zk: Any) -> None:
    owner = await connect()
    for name in ("a", "b"):
        await owner.create(zk.at(name), flags=1)
    assert sorted((await zk.children(zk.root)).names) == ["a", "b"]
    await owner.close_session()
    names, stat = (await zk.children2(zk.root)).names_and_stat
    assert (names, stat.cversion) == ([], 4)


@pytest.mark.case("ZK-43")
async def test_sync(zk: Any) -> None:
    assert (await zk.sync(zk.root)).path == zk.root
    assert (await zk.sync(zk.at("missing"))).path == zk.at("missing")


@pytest.mark.case("ZK-44")
async def test_get_acl(zk: Any) -> None:
    assert (await zk.get_acl(zk.root)).acl_and_stat == ([(31, "world", "anyone")], await zk.stat_of(zk.root))


@pytest.mark.case("ZK-45")
@pytest.mark.parametrize(
    "acl",
    [
        [],
        [(31, "nonsense", "x")],
        [(31, "auth", "")],
        [(31, "world", "x")],
        [(31, "digest", "nocolon")],
        [(31, "ip", "300.1.1.1")],
        [(31, "sasl", "kafka")],
        [(31, "world", "anyone"), (31, "ip", "nonsense")],
    ],
)
async def test_invalid_acl(zk: Any, acl: Any) -> None:
    assert (await zk.create(zk.at("x"), acl=acl)).err == -114
    assert (await zk.set_acl(zk.root, acl)).err == -114
    assert (await zk.multi(zk.op.create(zk.at("x"), acl=acl))).codes == [-114]


@pytest.mark.case("ZK-46")
async def test_auth_is_stored_as_digest(connect: Any, zk: Any) -> None:
    client = await connect()
    reply = await client.auth("digest", b"user:secret")
    assert (reply.xid, reply.zxid, reply.err, reply.body) == (-4, 0, 0, b"")
    await client.create(zk.at("x"), acl=[(31, "auth", "")])
    digest = base64.b64encode(hashlib.sha1(b"user:secret").digest()).decode()
    assert (await client.get_acl(zk.at("x"))).acl_and_stat[0] == [(31, "digest", f"user:{digest}")]


@pytest.mark.case("ZK-47")
async def test_stranger_on_a_protected_node(connect: Any, zk: Any) -> None:
    owner = await connect()
    await owner.auth("digest", b"user:secret")
    path = (await owner.create(zk.at("x"), b"1", acl=[(31, "auth", "")])).path
    await owner.create(f"{path}/child")
    for reply in (
        await zk.get(path),
        await zk.exists(path),
        await zk.children(path),
        await zk.set(path),
        await zk.create(f"{path}/other"),
        await zk.get_acl(path),
        await zk.set_acl(path, [(31, "world", "anyone")]),
        await zk.delete(f"{path}/child"),
    ):
        assert reply.err == -102
    assert (await zk.multi(zk.op.check(path, 0))).codes == [-102]
    assert (await zk.multi_read(zk.op.get(path))).codes == [-102]
    assert (await owner.get(path)).node[0] == b"1"
    await owner.delete(f"{path}/child")
    assert (await zk.delete(path)).err == 0


@pytest.mark.case("ZK-47")
async def test_digest_is_masked_without_admin(connect: Any, zk: Any) -> None:
    owner = await connect()
    await owner.auth("digest", b"user:secret")
    path = (await owner.create(zk.at("x"), acl=[(31, "auth", ""), (1, "world", "anyone")])).path
    assert (await zk.get_acl(path)).acl_and_stat[0] == [(31, "digest", "user:x"), (1, "world", "anyone")]


@pytest.mark.case("ZK-47")
async def test_address_as_identity(zk: Any) -> None:
    await zk.create(zk.at("mine"), acl=[(31, "ip", "127.0.0.0/8")])
    await zk.create(zk.at("other"), acl=[(31, "ip", "10.1.2.3")])
    assert (await zk.get(zk.at("mine"))).err == 0
    assert (await zk.get(zk.at("other"))).err == -102


@pytest.mark.case("ZK-48")
async def test_unknown_auth_scheme(connect: Any) -> None:
    client = await connect()
    reply = await client.auth("nonsense", b"x")
    assert (reply.xid, reply.err) == (-4, -115)
    await client.eof()


@pytest.mark.case("ZK-49")
async def test_identity_belongs_to_the_connection(connect: Any, zk: Any) -> None:
    first = await connect()
    await first.auth("digest", b"user:secret")
    path = (await first.create(zk.at("x"), acl=[(31, "auth", "")])).path
    await first.drop()
    again = await connect(resume=first)
    assert (await again.get(path)).err == -102
    await again.auth("digest", b"user:secret")
    assert (await again.get(path)).err == 0


@pytest.mark.case("ZK-50")
async def test_get_ephemerals(connect: Any, zk: Any) -> None:
    other = await connect()
    await other.create(zk.at("foreign"), flags=1)
    for name in ("ab", "ac", "b"):
        await zk.create(zk.at(name), flags=1)
    assert sorted((await zk.get_ephemerals("/")).names) == [zk.at("ab"), zk.at("ac"), zk.at("b")]
    assert sorted((await zk.get_ephemerals(zk.at("a"))).names) == [zk.at("ab"), zk.at("ac")]
    assert (await zk.get_ephemerals(zk.at("none"))).names == []


async def test_count_of_all_descendants(zk: Any) -> None:
    path = await zk.make("x")
    await zk.create(f"{path}/a")
    await zk.create(f"{path}/a/b")
    await zk.make("xy")
    body = (len(path)).to_bytes(4, "big") + path.encode()
    assert (await zk.call((104, body))).body == (2).to_bytes(4, "big")


@pytest.mark.case("ZK-51")
async def test_container(zk: Any) -> None:
    path, stat = (await zk.create(zk.at("x"), flags=4, code=19)).path_and_stat
    assert (path, stat.owner) == (zk.at("x"), 0)
    assert (await zk.create(f"{path}/child")).err == 0


@pytest.mark.case("ZK-52")
async def test_flags_that_are_refused(zk: Any) -> None:
    for flags, code in ((5, 21), (6, 21), (5, 1)):
        assert (await zk.create(zk.at("x"), flags=flags, code=code)).err == -6
    for flags in (7, 9, -1):
        assert (await zk.create(zk.at("x"), flags=flags)).err == -8
        assert (await zk.multi(zk.op.create(zk.at("x"), flags=flags))).err == -5
    assert (await zk.multi(zk.op.create(zk.at("x"), flags=5, code=21))).codes == [-6]
