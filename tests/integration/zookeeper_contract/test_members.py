"""Tests for several servers: a session that moves from one to another."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

several = pytest.mark.parametrize("target", ["lagging", "ensemble"], indirect=True)


@several
@pytest.mark.case("ZK-100")
@pytest.mark.parametrize(("old", "new"), [("follower", "leader"), ("follower", "follower"), ("leader", "follower")])
async def test_a_moved_sessions_old_connection(connect: Any, target: Any, old: str, new: str) -> None:
    client = await connect(at=target.members[old][0])
    path = (await client.create(f"{client.root}-moved", b"old")).path
    moved = await connect(at=target.members[new][-1], resume=client)
    assert moved.session == client.session
    if old == "follower":
        assert (await client.get(path)).node[0] == b"old"
        assert (await client.ping()).err == 0
        client.send(client.op.set(path, b"by the old connection"))
    else:
        client.send(client.op.get(path))
    await client.eof()
    assert (await moved.get(path)).node[0] == b"old"
    assert (await moved.set(path, b"new")).err == 0
    assert (await moved.get(path)).node[0] == b"new"
