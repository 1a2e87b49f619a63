"""What tests can do to a session in memory. That it behaves like ZooKeeper is tested in
tests/integration/test_zookeeper_port.py."""

from __future__ import annotations

import asyncio

import pytest

from klamm.model.errors import BadVersion, ConnectionLoss, NoNode, SessionExpired
from klamm.model.ports import CreateMode, Set, WatchEvent, WatchKind
from klamm.testing.zookeeper import InMemoryTree, InMemoryZooKeeper


async def test_lost_answers() -> None:
    zk = InMemoryZooKeeper()
    zk.put("/a/b", "0")
    zk.lose_answers = ["dropped", "applied"]
    for value, found in (("1", "0"), ("2", "2")):
        with pytest.raises(ConnectionLoss):
            await zk.set("/a/b", value.encode())
        assert zk.text("/a/b") == found
    assert (await zk.set("/a/b", b"3")).version == 2
    assert zk.tree.writes == ["set /a/b 2", "set /a/b 3"]


async def test_an_ephemeral_whose_answer_was_lost_is_found() -> None:
    zk = InMemoryZooKeeper(session_id=5)
    zk.lose_answers = ["applied"]
    path, stat = await zk.create("/e", b"", CreateMode.EPHEMERAL)
    assert (path, stat.ephemeral_owner) == ("/e", 5)


async def test_another_client_comes_first() -> None:
    zk = InMemoryZooKeeper()
    zk.put("/a", "0")
    zk.before_write = lambda: zk.put("/a", "theirs")
    (result,) = await zk.multi([Set("/a", b"ours", 0)])
    assert isinstance(result, BadVersion)
    assert (zk.text("/a"), zk.tree.writes) == ("theirs", [])


async def test_expiry() -> None:
    tree = InMemoryTree()
    one, two = InMemoryZooKeeper(tree, 1), InMemoryZooKeeper(tree, 2)
    seen: list[WatchEvent] = []
    steps: list[str] = []

    class Owner:
        async def before_new_session(self) -> None:
            steps.append(f"before, session {one.session_id}")

        async def after_new_session(self) -> None:
            steps.append(f"after, session {one.session_id}")

        async def on_auth_failure(self) -> None: ...

    one.add_session_listener(Owner())
    await one.create("/e", b"", CreateMode.EPHEMERAL)
    await one.exists("/e", seen.append)
    await two.exists("/e", seen.append)
    one.expire()
    await asyncio.sleep(0)
    assert seen == [WatchEvent(WatchKind.DELETED, "/e")]  # the expired session's own watch is gone
    with pytest.raises(SessionExpired):
        await one.get("/")
    await one.new_session(3)
    assert steps == ["before, session 1", "after, session 3"]
    with pytest.raises(NoNode):
        await one.get("/e")


async def test_forgotten_watches() -> None:
    zk = InMemoryZooKeeper()
    seen: list[str] = []
    for path in ("/a", "/b"):
        zk.put(path)
        await zk.get(path, lambda event: seen.append(event.path))
    zk.forget_watches("b")
    zk.put("/a")
    zk.remove("/b")
    await asyncio.sleep(0)
    assert seen == ["/a"]
